import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import surestep
from surestep.base.errors import DataError, SurestepError, TaskError
from surestep.engine.metrics.base import pop_logged
from tests import tiny
from tests.laws.support.detector import Detector, Images, collate
from tests.parts import see_log_points

X, Y = tiny.data()
TOKENS = torch.randint(3, (20, 6))
MASKED = TOKENS.masked_fill(torch.arange(6) > torch.arange(20)[:, None] % 6, -100)


def regression(targets, loss=None, **parts):
    net = nn.Linear(4, 1)
    return {"model": net, "train": (X, targets), "loss": loss or nn.MSELoss(), **parts}


@pytest.mark.parametrize("where", ["loss", "model", "metric", "detector"])
def test_values_logged_in_the_checks_are_not_those_of_the_first_step(tmp_path, where):
    calls = []

    def log_one(*_):
        calls.append(1)
        surestep.log("calls", torch.tensor(float(len(calls))))

    def loss(outputs, targets):
        if where == "loss":
            log_one()
        return functional.mse_loss(outputs, targets)

    def metric(outputs, targets):
        if where == "metric":
            log_one()
        return (outputs - targets).abs().mean()

    parts = regression(X[:, :1], loss, val=(X, X[:, :1]), metrics={"error": metric})
    if where == "detector":
        train = {"train": Images(), "collate_fn": collate}
        parts = {"model": Detector(), "loss": "model in training", **train}
    if where in ("model", "detector"):
        parts["model"].register_forward_hook(log_one)
    with tiny.prepare(tmp_path, parts, logging={"every": "1 step"}) as session:
        assert pop_logged() == []
        points, before = [], len(calls)
        see_log_points(session, points.append)
        next(session.steps())
    assert before > 0
    assert points[0].logged.get("calls") == (None if where == "metric" else [before + 1.0])


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, logits, y):
        return nn.functional.cross_entropy(logits / self.temperature, y)


class Embedded(nn.Module):
    """Maps (samples, tokens) to (samples, classes, tokens)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3)

    def forward(self, tokens):
        return self.table(tokens).transpose(1, 2)


class Swapped(Embedded):
    def forward(self, tokens):
        return self.table(tokens)


class OnTwoDevices(nn.Module):
    def __init__(self):
        super().__init__()
        self.here, self.there = nn.Linear(4, 3), nn.Linear(4, 3, device="meta")


def spoiled(value):
    x = X.clone()
    x[3, 2] = x[4, 1] = value
    return x


def cross_entropy(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def summed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


def contrastive(outputs, targets):
    scores = outputs @ outputs.T
    return functional.cross_entropy(scores, torch.arange(len(scores)))


def frozen():
    return tiny.model().requires_grad_(False)


ORDERED = {"data": {"shuffle": False}}
REFUSED = {
    "no samples": ({"train": (X[:0], Y[:0])}, DataError, "The train data is empty"),
    "no items": (
        {"train": (X, torch.full_like(Y, -100))},
        DataError,
        r"first batches have no items \(up to 16 were read\): every target is ignored.*Check",
    ),
    "NaN inputs": (
        {"train": (spoiled(torch.nan), Y)},
        DataError,
        r"inputs of the first batch hold 2 values that are NaN or infinite \(shape \(8, 4\)\): "
        r"training samples \[3, 4\]\. Correct them, exclude them with exclude_samples=\[3, 4\], or "
        r"skip such a step with on_nonfinite='skip'",
    ),
    "infinite inputs": ({"train": (spoiled(torch.inf), Y)}, DataError, "NaN or infinite"),
    "NaN targets": (
        regression(torch.full((20, 1), torch.nan)),
        DataError,
        "targets of the first batch hold 8 values",
    ),
    "broadcast": (
        regression(torch.randn(20)),
        TaskError,
        r"outputs have shape \(8, 1\) and the targets \(8,\).*would broadcast.*squeeze\(-1\)",
    ),
    "broadcast in a custom loss": (
        regression(torch.randn(20), lambda o, t: (o - t).square().mean()),
        TaskError,
        r"shape \(8, 1\) with one of shape \(8,\).*targets\.unsqueeze\(-1\)",
    ),
    "class too large": (
        {"train": (X, Y + 2)},
        DataError,
        "run from 2 to 4, and the model has 3 outputs: class indices are 0 to 2",
    ),
    "class negative": ({"train": (X, Y - 1)}, DataError, "run from -1 to 1"),
    "float classes": (
        {"train": (X, Y.float())},
        DataError,
        r"targets are torch\.float32 of shape \(8,\)\. Class indices are integers: use targets\.lo",
    ),
    "one-hot": (
        {"train": (X, functional.one_hot(Y, 3))},
        (DataError, TaskError),
        r"\(8, 3\) and the targets \(8, 3\)",
    ),
    "int32 classes": (
        {"train": (X, Y.int())},
        DataError,
        r"are int64, but the targets are torch\.int32",
    ),
    "integer regression": (
        regression(Y[:, None]),
        DataError,
        r"MSELoss takes floating point numbers\. Use targets\.float\(\)",
    ),
    "classes last": (
        {"model": Swapped(), "train": (TOKENS, TOKENS)},
        TaskError,
        r"outputs have shape \(8, 6, 3\).*Use surestep\.losses\.multiclass\(class_dim=-1\)",
    ),
    "vector loss": (
        {"loss": lambda o, t: functional.cross_entropy(o, t, reduction="none")},
        TaskError,
        r"The loss has shape \(8,\), and a step needs one number.*loss\.mean\(\)",
    ),
    "vector term": (
        {"loss": lambda o, t: {"a": o.mean(), "b": o.mean(1)}},
        TaskError,
        r"The loss part 'b' has shape \(8,\)",
    ),
    "float loss": ({"loss": lambda o, t: 1.0}, TaskError, "The loss is a float. Return a tensor"),
    "mean of means": (
        {
            "model": Embedded(),
            "train": list(zip(TOKENS, MASKED, strict=True)),
            "loss": cross_entropy,
        },
        TaskError,
        r"not a mean over its items: for 8 samples it is .*Task\(items='tokens'\)",
    ),
    "ignored targets by samples": (
        {"model": Embedded(), "train": (TOKENS, MASKED), "loss": cross_entropy},
        TaskError,
        r"54 targets are -100, .*Task\(items='tokens'\)",
    ),
    "loss with parameters": (
        {"loss": Tempered()},
        TaskError,
        "The loss has parameters, which nothing would train: temperature",
    ),
    "contrastive": (
        {"loss": contrastive},
        TaskError,
        r"Task\(loss_is_separable=False\) if it compares samples",
    ),
    "wrong inputs": (
        {"model": nn.Linear(5, 3)},
        TaskError,
        r"The model fails on the first batch, whose inputs have shapes \[\(8, 4\)\]",
    ),
    "nothing to train": ({"model": frozen()}, TaskError, "No parameter of the model is trained"),
    "no parameters": ({"model": nn.Identity()}, TaskError, "No parameter of the model is trained"),
    "lists as samples": (
        {"train": list(zip(X.tolist(), Y.tolist(), strict=True))},
        TaskError,
        r"shapes \[\(8,\), \(8,\), \(8,\), \(8,\)\]: .*Python lists.*torch\.tensor\(data\)",
    ),
    "metric": (
        {"metrics": {"hits": lambda logits, y: (logits == y).mean()}},
        TaskError,
        r"metrics\['hits'\] fails on the first batch: RuntimeError: The size of tensor a .*It got "
        r"outputs \(8, 3\) of torch.float32 and targets \(8,\) of torch.int64\.$",
    ),
    "two devices": (
        {"model": OnTwoDevices()},
        TaskError,
        "on several devices: cpu, meta. Build it on one and set device=",
    ),
    "two tensors": (
        {"model": nn.LSTM(4, 3, batch_first=True), "train": (X[:, None], Y)},
        TaskError,
        "The model returns a tuple, and the loss takes a tensor",
    ),
}


@pytest.mark.parametrize(("parts", "error", "sentence"), REFUSED.values(), ids=REFUSED)
def test_untrainable_task_is_rejected_at_the_start(tmp_path, parts, error, sentence):
    torch.manual_seed(0)
    with pytest.raises(error) as caught:
        tiny.prepare(tmp_path / "run", parts, **ORDERED).close()
    assert caught.match(f"(?s){sentence}")
    assert not (tmp_path / "run").exists()


def test_metric_that_cannot_take_bf16_is_told_to_convert_the_outputs(tmp_path):
    parts = {"metrics": {"auc": lambda logits, y: logits.numpy().mean()}}
    says = (
        r"Got unsupported ScalarType BFloat16.* It got outputs \(8, 3\) of torch.bfloat16 and "
        r"targets .*numpy has no bfloat16: use outputs\.float\(\) in the metric, or "
        r"surestep\.whole_set\(fn\)"
    )
    with pytest.raises(TaskError, match=says):
        tiny.prepare(tmp_path / "run", parts, precision="bf16").close()


class Waiting(nn.Linear):
    """Fails like a model that timed out waiting for a different rank."""

    def forward(self, x):
        raise RuntimeError("[/x/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 9ms")


def test_timeout_waiting_for_a_rank_is_not_reported_as_a_model_error(tmp_path):
    with pytest.raises(RuntimeError, match="Timed out waiting") as caught:
        tiny.prepare(tmp_path / "run", {"model": Waiting(4, 3)}).close()
    assert not isinstance(caught.value, SurestepError)


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: functional.cross_entropy(o.detach(), t),
        lambda o, t: functional.cross_entropy(o.data, t),
        lambda o, t: functional.cross_entropy(torch.tensor(o.tolist()), t),
    ],
    ids=["detach", "data", "new tensor"],
)
def test_loss_detached_from_its_graph_is_rejected_with_a_hint(tmp_path, loss):
    with pytest.raises(SurestepError, match="detach"):
        tiny.fit(tmp_path / "run", {"loss": loss})


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_broadcast_within_a_torch_function_is_rejected(tmp_path):
    parts = regression(torch.randn(20), lambda o, t: functional.mse_loss(o, t))
    with pytest.raises(TaskError, match=r"squeeze\(-1\)"):
        tiny.prepare(tmp_path / "run", parts).close()


def masked(**parts):
    usual = {"model": Embedded(), "train": (TOKENS, MASKED), "loss": cross_entropy}
    return {**usual, **parts}


ACCEPTED = {
    "tokens": masked(items="tokens"),
    "items of the batch": masked(items=lambda batch: (batch[1] != -100).sum()),
    "items of a dict": masked(
        train={"tokens": TOKENS, "y": MASKED}, items=lambda batch: (batch["y"] != -100).sum()
    ),
    "items of a batch with an inputs function": masked(
        train={"words": TOKENS, "next": MASKED, "count": (MASKED != -100).sum(1)},
        inputs=lambda batch: (batch["words"], batch["next"]),
        items=lambda batch: batch["count"].sum(),
    ),
    "contrastive, declared": {"loss": contrastive, "loss_is_separable": False},
    "probabilities": {"train": (X, functional.one_hot(Y, 3).float())},
    "two targets": {
        "inputs": lambda batch: (batch[0], {"classes": batch[1], "sizes": batch[0].norm(dim=1)}),
        "loss": lambda o, t: cross_entropy(o, t["classes"]) + (o.mean(1) * t["sizes"]).mean(),
    },
}


@pytest.mark.parametrize("parts", ACCEPTED.values(), ids=ACCEPTED)
def test_trainable_task_is_accepted_and_trains(tmp_path, parts):
    run = tiny.fit(tmp_path / "run", parts, max_steps=2, micro_batch_size=3)
    assert run.status["status"] == "finished"


def test_first_loss_far_above_guessing_causes_a_warning(tmp_path):
    x, y = 100 * X, Y
    with pytest.warns(
        UserWarning, match=r"first loss is .*equal probabilities for 3 classes .* 1\.1"
    ):
        tiny.prepare(tmp_path / "run", {"model": nn.Linear(4, 3), "train": (x, y)}).close()


@pytest.mark.parametrize(
    "parts",
    [
        {"train": (spoiled(torch.nan), Y)},
        {"train": list(zip(spoiled(torch.inf), Y, strict=True)), "loss": cross_entropy},
        regression(torch.randn(20, 1).index_fill(0, torch.tensor([3]), torch.nan)),
    ],
    ids=["inputs", "custom loss", "targets"],
)
def test_first_batch_that_is_not_finite_is_left_to_the_step_that_skips_it(tmp_path, parts):
    run = tiny.fit(tmp_path / "run", parts, on_nonfinite="skip", max_steps=3, **ORDERED)
    assert run.status["status"] == "finished"


def test_other_samples_of_a_first_batch_that_is_not_finite_are_checked(tmp_path):
    parts = {"train": (spoiled(torch.nan), Y + 2)}
    with pytest.raises(DataError, match="run from 2 to 4"):
        tiny.prepare(tmp_path / "run", parts, on_nonfinite="skip", **ORDERED).close()


def test_loss_of_a_first_batch_that_is_not_finite_is_checked_on_finite_samples(tmp_path):
    parts = {"train": (spoiled(torch.nan), Y), "loss": summed}
    with pytest.raises(TaskError, match="is not a mean over its items"):
        tiny.prepare(tmp_path / "run", parts, on_nonfinite="skip", **ORDERED).close()


def test_samples_that_the_error_names_can_be_excluded(tmp_path):
    parts = {"train": (spoiled(torch.nan), Y)}
    with pytest.raises(DataError, match="exclude_samples=") as caught:
        tiny.prepare(tmp_path / "refused", parts).close()
    listed = re.findall(r"samples=\[(.*?)\]", str(caught.value))[0]
    assert set(map(int, listed.split(", "))) <= {3, 4}
    run = tiny.fit(tmp_path / "run", parts, exclude_samples=[3, 4], max_steps=2)
    assert run.status["status"] == "finished"


def test_first_loss_of_a_resumed_run_is_not_compared_with_guessing(tmp_path):
    net = nn.Linear(4, 3)
    with tiny.prepare(tmp_path, {"model": net}) as session:
        next(session.steps())
        torch.nn.init.normal_(net.weight, std=1000)
        session.save()
    tiny.prepare(tmp_path, {"model": net}).close()


def test_first_batch_check_preserves_weights_and_statistics(tmp_path):
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    before = tiny.weights(net)
    surestep.prepare(tiny.task(model=net), tiny.config(), run=tmp_path).close()
    assert torch.equal(tiny.weights(net), before)
