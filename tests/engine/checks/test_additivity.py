"""The check that a loss adds up over micro-batches: what it rejects, and what it accepts."""

from collections import namedtuple
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from benchmarks.declarations import (
    MODELS,
    RIGHT,
    SIZES,
    WRONG,
    Net,
    is_found,
    of_case,
    padded,
    token_mean,
    tokens,
    vae,
)
from torch import Tensor, nn
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.batch import map_tensors
from surestep.engine.checks.first_batch import check_first_batch
from surestep.engine.checks.varied_model import VariedModel
from surestep.engine.losses.adapt import as_loss
from tests import tiny
from tests.engine.losses.table import CASES as OWN
from tests.engine.losses.table import as_type
from tests.engine.losses.test_adapt import CASES as SIMPLE
from tests.engine.losses.test_torch_losses import CASES as OF_TORCH
from tests.needs import needs

X, Y = tiny.data(24)
PLAINLY = nullcontext()
Pair = namedtuple("Pair", "logits hidden")


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_items_or_reduction_of_a_loss_are_rejected(case):
    assert all(is_found(of_case(case), size, 1000) for size in SIZES)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_wrong_items_or_reduction_of_a_model_loss_are_rejected(make):
    assert all(is_found(make, size, 1000) for size in SIZES)


@pytest.mark.parametrize("make", RIGHT.values(), ids=RIGHT)
def test_correct_items_and_reduction_of_a_model_loss_are_accepted(make):
    assert not any(is_found(make, size, 1000, "") for size in SIZES)


class Drawing(nn.Module):
    """Returns losses in train mode and applies dropout to its inputs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3))

    def forward(self, x, targets=None):
        logits = self.layers(x)
        return logits if targets is None else {"label": functional.cross_entropy(logits, targets)}


def test_reduction_is_checked_for_a_model_with_dropout_in_train_mode():
    torch.manual_seed(0)
    model, loss = Drawing(), "model in training"
    check(model, (X, Y), loss, items=lambda batch: len(batch[1]))
    with pytest.raises(TaskError, match="that the model computes is not a sum"):
        check(model, (X, Y), loss, reduction="sum")


def test_check_preserves_weights_and_dtypes_of_a_half_precision_model():
    torch.manual_seed(0)
    make = MODELS["sum, of a bf16 model"](24, 0.02)
    before = {name: each.clone() for name, each in make.model.state_dict().items()}
    with pytest.raises(TaskError, match="is not a mean"):
        check(make.model, make.train, "model")
    after = make.model.state_dict()
    assert all(torch.equal(after[name], each) for name, each in before.items())
    assert {each.dtype for each in after.values()} == {torch.bfloat16}


class Float8(nn.Module):
    """Computes its own loss; a frozen layer in the middle has weights in 8 bits."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8, dtype=torch.bfloat16)
        self.middle = Frozen8()
        self.last = nn.Linear(8, 3, dtype=torch.bfloat16)
        self.seen = []

    def forward(self, x, labels):
        self.seen.append(self.first.bias)
        logits = self.last(self.middle(self.first(x.to(self.first.weight.dtype))))
        return {"loss": functional.cross_entropy(logits, labels)}


class Frozen8(nn.Module):
    """A matrix in 8 bits, which each forward converts to a wider dtype."""

    def __init__(self):
        super().__init__()
        weight = torch.randn(8, 8).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return x @ self.weight.to(x.dtype)


def float8_data():
    return {"x": X, "labels": Y}


def test_model_with_a_frozen_8_bit_weight_is_checked_by_its_other_weights():
    torch.manual_seed(0)
    check(Float8(), float8_data(), "model")
    with pytest.raises(TaskError, match="is not a sum"):
        check(Float8(), float8_data(), "model", reduction="sum")


def test_half_precision_weights_are_converted_to_fp32_once():
    torch.manual_seed(0)
    model = Float8()
    check(model, float8_data(), "model")
    widened = [each for each in model.seen if each.dtype == torch.float32]
    assert len(widened) >= 3
    assert len({id(each) for each in widened}) == 1


def out_of_memory(*_):
    raise torch.OutOfMemoryError("no memory for a copy")


@pytest.mark.parametrize("method", ["__init__", "vary"])
def test_correct_model_is_accepted_if_the_check_runs_out_of_memory(monkeypatch, method):
    torch.manual_seed(0)
    monkeypatch.setattr(VariedModel, method, out_of_memory)
    check(Float8(), float8_data(), "model")


class Lookup(nn.Module):
    """Returns stored outputs for sample indices."""

    def __init__(self, outputs):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.outputs = outputs

    def forward(self, rows):
        return map_tensors(self.outputs, lambda tensor: tensor[rows])


def as_mean(loss):
    """Return the mean of a known loss as a custom function."""

    def mean(outputs, targets):
        items = loss.items((outputs, targets) if targets is not None else outputs, targets)
        value = loss.value(outputs, targets)
        return loss.to_sum(value, items)[0] / items

    return mean


def check(model, data, loss, autocast=PLAINLY, **options):
    options = {"model": model, "loss": loss, "train": data, **options}
    training = tiny.train_loader(options, batch_size=64, data={"shuffle": False})
    check_first_batch(model, training, tiny.task(**options), autocast=autocast)


def named(value):
    """Return nested targets as a dict of tensors."""
    if isinstance(value, Tensor):
        return {"t0": value}
    return {} if value is None else {f"t{i}": each for i, each in enumerate(value)}


SHIPPED = {
    **{f"own {name}": (each.loss, each.outputs, each.targets) for name, each in OWN.items()},
    **{f"torch {name}": each for name, each in (*OF_TORCH.items(), *SIMPLE.items())},
}
SPLIT = {name: case for name, case in SHIPPED.items() if getattr(case[0], "is_separable", True)}
TYPES = [
    (torch.float64, False),
    (torch.float32, False),
    (torch.float32, True),
    (torch.bfloat16, True),
    (torch.bfloat16, False),
    (torch.float16, False),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "cast"), TYPES, ids=str)
@pytest.mark.parametrize(("plain", "outputs", "targets"), SPLIT.values(), ids=SPLIT)
def test_no_registered_or_torch_loss_is_rejected(plain, outputs, targets, dtype, cast):
    loss = as_loss(plain, "samples")
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(7, (20,), generator=generator)
        stored = as_type(outputs, dtype)
        if isinstance(plain, nn.CTCLoss):
            stored = stored.transpose(0, 1)
        model = Lookup(stored)
        if isinstance(plain, nn.CTCLoss):
            model.forward = lambda rows, stored=stored: stored[:, rows]
        wanted = {name: each[rows] for name, each in named(as_type(targets, dtype)).items()}

        def of_batch(batch):
            found = tuple(each for name, each in sorted(batch.items()) if name != "rows")
            return found[0] if len(found) == 1 else found or None

        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                as_mean(loss)(model(rows), of_batch({**wanted, "rows": rows}))
        except (RuntimeError, ValueError):
            pytest.skip("torch does not compute it in this precision")
        check(
            model,
            {"rows": rows, **wanted},
            as_mean(loss),
            torch.autocast("cpu", torch.bfloat16, enabled=cast),
            inputs=lambda batch: (batch["rows"], of_batch(batch)),
            items=lambda batch: loss.items(batch["rows"], of_batch(batch)),
        )


@dataclass
class Found:
    logits: Tensor
    hidden: Tensor
    note: str = "free"


NESTINGS = {
    "tuple": (tuple, lambda outputs: outputs[0]),
    "list": (list, lambda outputs: outputs[0]),
    "named tuple": (lambda pair: Pair(*pair), lambda outputs: outputs.logits),
    "dict": (lambda pair: dict(zip(("a", "b"), pair, strict=True)), lambda outputs: outputs["a"]),
    "dataclass": (lambda pair: Found(*pair), lambda outputs: outputs.logits),
    "nested": (lambda pair: {"a": [(pair[0],), pair[1]], "n": None}, lambda o: o["a"][0][0]),
    "time first": (lambda pair: pair[0].permute(2, 0, 1), lambda o: o.permute(1, 2, 0)),
    "flattened": (lambda pair: pair[0].movedim(2, 1).flatten(0, 1), None),
    "with a constant": (lambda pair: (pair[0], torch.eye(3)), lambda outputs: outputs[0]),
    "constant with one row per sample": (lambda pair: (pair[0], torch.ones(24, 2)), lambda o: o[0]),
    "with an object": (lambda pair: (pair[0], object()), lambda outputs: outputs[0]),
    "object": (lambda pair: Opaque(pair[0]), lambda outputs: outputs.logits),
}


class Opaque:
    def __init__(self, logits):
        self.logits = logits


@pytest.mark.parametrize(("nest", "find"), NESTINGS.values(), ids=NESTINGS)
@pytest.mark.parametrize("right", [True, False])
def test_nested_outputs_of_any_type_are_checked(nest, find, right):
    """The loss is a mean over samples with several positions, or that mean times the samples."""
    torch.manual_seed(0)
    model = Net((3, 5), 0.5, lambda outputs: nest((outputs, outputs.mean(1))))
    places = torch.randint(3, (24, 5))

    def loss(outputs, targets):
        if find is None:
            mean = functional.cross_entropy(outputs, targets.flatten())
        else:
            mean = functional.cross_entropy(find(outputs), targets)
        return mean if right else mean * len(targets)

    data = (torch.randn(24, 6), places)
    if right:
        check(model, data, loss)
        return
    with pytest.raises(TaskError, match=r"It is a sum over samples.*Task\(reduction='sum'\)"):
        check(model, data, loss)


@pytest.mark.slow("needs transformers")
def test_hugging_face_outputs_are_checked():
    outputs = needs("transformers.modeling_outputs")
    model = Net((5, 12), 0.02, lambda o: outputs.TokenClassifierOutput(logits=o))

    def mean(found, targets):
        return token_mean(found.logits, targets)

    data = (torch.randn(24, 6), padded(24))
    check(model, data, mean, items=tokens)
    with pytest.raises(TaskError, match="is not a mean over its items"):
        check(model, data, mean)


def test_error_shows_the_option_to_set():
    torch.manual_seed(0)
    data = [(x, y) for x, y in zip(torch.randn(24, 6), padded(24), strict=True)]
    ignored = [(x, torch.where(y == 255, -100, y)) for x, y in data]

    def mean(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    model = Net((5, 12), 0.0)
    with pytest.raises(TaskError, match=r"not a mean over its items.*Task\(items='tokens'\)"):
        check(model, ignored, mean)
    check(model, ignored, mean, items="tokens")
    with pytest.raises(TaskError, match="a mean over samples, the default: leave items out"):
        check(Net((5,), 0.0), (X[:, :1].expand(24, 6), Y), mean, items=lambda b: int(b[1].sum()))
    with pytest.raises(TaskError, match=r"not a sum.*a mean over samples.* leave reduction out"):
        check(Net((5,), 0.0), (torch.randn(24, 6), Y), mean, reduction="sum")


def test_loss_that_is_nan_for_a_part_of_the_batch_is_rejected():
    """A mean over the samples of one class is NaN for a micro-batch that has none of them."""

    def loss(outputs, targets):
        rare = functional.cross_entropy(outputs[targets == 0], targets[targets == 0])
        return functional.cross_entropy(outputs, targets) + 1e-9 * rare

    with pytest.raises(TaskError, match="not a mean over its items"):
        check(tiny.model(), (X, Y), loss)


def test_random_loss_that_is_a_mean_is_not_rejected():
    def noisy(outputs, targets):
        return functional.cross_entropy(outputs + torch.randn_like(outputs), targets)

    def noisy_sum(outputs, targets):
        return len(targets) * noisy(outputs, targets)

    check(tiny.model(), (X, Y), noisy)
    with pytest.raises(TaskError, match="not a mean over its items"):
        check(tiny.model(), (X, Y), noisy_sum)


def test_mean_over_random_weights_is_rejected():
    def weighted(outputs, targets):
        weights = torch.rand(len(targets))
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return (weights * losses).sum() / weights.sum()

    with pytest.raises(TaskError, match="not a mean over its items"):
        check(tiny.model(), (X, Y), weighted)


def test_random_model_is_not_rejected():
    class Noisy(nn.Linear):
        def forward(self, x):
            return Opaque(super().forward(x + torch.randn_like(x)))

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.logits, targets)

    check(Noisy(4, 3), (X, Y), loss)
    with pytest.raises(TaskError, match="not a mean over its items"):
        check(Noisy(4, 3), (X, Y), lambda o, t: loss(o, t) * len(t))


class Counting(nn.Module):
    """Updates a buffer and draws random numbers in each call, also in eval mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return Opaque(self.linear(x) + 0 * torch.rand(()))


class CountingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs, targets):
        self.calls += 1
        return functional.cross_entropy(outputs.logits, targets) + 0 * torch.rand(())


def test_check_preserves_buffers_and_the_random_state():
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    model, loss = Counting(), CountingLoss()
    torch.set_rng_state(before[0])
    check(model, (X, Y), loss)
    assert float(model.calls) == float(loss.calls) == 0
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def autoencoder():
    torch.manual_seed(0)
    return Net((24,), 0.1, lambda o: (o[:, :16].sigmoid(), o[:, 16:20], o[:, 20:]))


DRAW = torch.Generator().manual_seed(1)
IMAGES = (torch.randn(20, 6, generator=DRAW), torch.rand(20, 16, generator=DRAW))


def test_summed_loss_is_rejected_unless_reduction_is_sum(tmp_path):
    parts = {"model": autoencoder(), "loss": vae, "train": IMAGES}
    with pytest.raises(TaskError, match=r"sum over samples.*Task\(reduction='sum'\)"):
        tiny.prepare(tmp_path / "run", parts)
    assert not (tmp_path / "run").exists()


PLAIN = {
    "optim": {"name": "sgd", "lr": 1e-3, "weight_decay": 0.0, "momentum": 0.0},
    "schedule": {"name": "constant"},
    "max_grad_norm": "off",
}


def plain_step():
    """Return the weights after a step of plain torch, and the summed loss per sample."""
    net = autoencoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    vae(net(IMAGES[0][:8]), IMAGES[1][:8]).backward()
    optimizer.step()
    return tiny.weights(net), float(vae(net(IMAGES[0]), IMAGES[1]).detach()) / len(IMAGES[0])


@pytest.mark.parametrize(("size", "measured"), [(8, 20), (1, 3), (3, 1), (5, 7)])
def test_declared_sum_equals_plain_torch_for_any_micro_batch_size(tmp_path, size, measured):
    net = autoencoder()
    parts = {"model": net, "loss": vae, "train": IMAGES, "val": IMAGES, "reduction": "sum"}
    options = {"micro_batch_size": size, "validation": {"batch_size": measured}}
    options |= {"data": {"shuffle": False}, **PLAIN}
    with tiny.prepare(tmp_path, parts, **options) as session:
        result = next(session.steps())
        assert (result.items, result.divisor) == (8, 1)
        found = session.evaluate()
    weights, per_sample = plain_step()
    torch.testing.assert_close(tiny.weights(net), weights, rtol=1e-6, atol=1e-8)
    assert found["val/loss"] == pytest.approx(per_sample, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["tensors", "samples"])
def test_summed_loss_is_rejected_with_micro_batches_of_one_sample(tmp_path, size, kind):
    data = IMAGES if kind == "tensors" else list(zip(*IMAGES, strict=True))
    parts = {"model": autoencoder(), "loss": vae, "train": data}
    with pytest.raises(TaskError, match=r"sum over samples"):
        tiny.prepare(tmp_path / "run", parts, micro_batch_size=size)


def test_loss_that_asserts_a_range_of_outputs_is_not_rejected():
    def loss(outputs, targets):
        assert outputs.abs().max() < 0.5
        return functional.cross_entropy(outputs, targets)

    check(Net((3,), 0.01), (torch.randn(24, 6), Y), loss)


def test_model_that_accepts_only_one_sample_is_not_rejected(tmp_path):
    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    class Picky(nn.Linear):
        def forward(self, x):
            assert len(x) == 1
            return super().forward(x)

    parts = {"model": Picky(4, 3), "loss": loss, "train": (X, Y)}
    with tiny.prepare(tmp_path / "run", parts, micro_batch_size=1) as session:
        next(session.steps())


def test_reduction_of_one_of_several_losses_can_be_set_to_sum(tmp_path):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x):
            return {"kind": self.body(x), "size": self.body(x).square()}

    def summed(outputs, targets):
        return (outputs.sum(1) - targets).square().sum()

    parts = {
        "model": Heads(),
        "loss": {"kind": nn.CrossEntropyLoss(), "size": summed},
        "train": {"x": X, "kind": Y, "size": X[:, 0]},
    }
    with pytest.raises(TaskError, match=r"loss\['size'\].*Task\(reduction=\{'size': 'sum'\}\)"):
        tiny.prepare(tmp_path / "run", parts)
    with tiny.prepare(tmp_path / "run", {**parts, "reduction": {"size": "sum"}}) as session:
        next(session.steps())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"reduction": "none", "loss": lambda outputs, targets: outputs.mean()},
            r"reduction='none' is not known\. Use 'mean' or 'sum'",
        ),
        ({"reduction": "sum"}, r"reduction='sum' is set, but CrossEntropyLoss brings its own"),
        ({"reduction": {"a": "sum"}}, r"reduction names several losses, and the Task has one"),
    ],
)
def test_invalid_reduction_is_rejected(tmp_path, options, sentence):
    with pytest.raises(TaskError, match=sentence):
        tiny.prepare(tmp_path / "run", options)
