"""Errors of a forward: which module, what it got, and what to do."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.base.errors import DataError, TaskError
from surestep.trainer.evaluator import evaluate_run, predict_run
from tests import tiny

X, Y = tiny.data()
UNDER = "Compute the gradient under `with torch.enable_grad():`"


class Forces(nn.Module):
    """The gradient of an energy by the positions, as force fields compute it."""

    def __init__(self, context=torch.enable_grad):
        super().__init__()
        self.net, self.context = tiny.model(), context

    def forward(self, x):
        with self.context():
            x = x.detach().requires_grad_()
            energy = self.net(x).sum()
            return torch.autograd.grad(energy, x, create_graph=self.training)[0]


class Usual(torch.autograd.set_grad_enabled):
    """The mode in which the forward was called."""

    def __init__(self):
        super().__init__(torch.is_grad_enabled())


def slope(outputs, targets):
    return torch.autograd.grad(outputs.sum(), outputs)[0].mean()


@pytest.mark.parametrize(
    "parts",
    [
        {"model": Forces(Usual), "loss": nn.MSELoss(), "train": (X, X)},
        {"model": nn.Sequential(nn.Linear(4, 4), Forces(Usual)), "train": (X, X), "loss": "mse"},
        {"loss": slope},
        {"metrics": {"slope": slope}},
    ],
    ids=["model", "submodule", "loss", "metric"],
)
def test_gradient_without_a_graph_is_named_with_what_to_do(tmp_path, parts):
    with pytest.raises(TaskError) as caught:
        tiny.fit(tmp_path, {"val": parts.get("train", (X, Y)), **parts})
    assert "does not require grad and does not have a grad_fn" in str(caught.value)
    assert UNDER in str(caught.value)


def test_gradient_in_a_forward_is_the_same_in_every_command(tmp_path):
    torch.manual_seed(0)
    parts = {"model": Forces(), "loss": nn.MSELoss(), "train": (X, X), "val": (X, X)}
    run = tiny.fit(tmp_path, parts, max_steps=3)
    config, task = tiny.config(max_steps=3), tiny.task(**parts)
    net = Forces()
    run.load_model(net, which="last")
    plain = net.eval()(X)
    _, metrics = evaluate_run(run, task, config, split="val", which="last")
    assert metrics["val/loss"] == pytest.approx(float(nn.functional.mse_loss(plain, X)))
    _, predicted = predict_run(run, task, config, split="val", which="last")
    assert torch.allclose(torch.from_numpy(predicted["output"]), plain)


class Rows(Dataset):
    """Samples whose inputs are nested."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        nested = {"x": X[index], "t": X[index]} if self.kind is dict else self.kind([X[index]] * 2)
        return nested, Y[index]


class Both(nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        self.net = tiny.model()

    def forward(self, x, t):
        return self.net(x + t)


class Pair(Both):
    """A model of one input with two parts, which fails by an AttributeError for a list."""

    def forward(self, pair):
        return self.net(pair.flatten(1))


@pytest.mark.parametrize("model", [Both, Pair, tiny.model])
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_nested_input_of_a_sample_is_named_with_how_to_pass_its_parts(tmp_path, kind, model):
    with pytest.raises(TaskError) as caught:
        tiny.fit(tmp_path, {"train": Rows(kind), "model": model()})
    text = "batch[0]" if kind is dict else "tuple(batch[0])"
    assert f"Task(inputs=lambda batch: ({text}, batch[-1]))" in str(caught.value)
    assert f"Part 0 of a batch is a {'dict' if kind is dict else 'list'}" in str(caught.value)
    split = (lambda b: (b[0], b[-1])) if kind is dict else (lambda b: (tuple(b[0]), b[-1]))
    tiny.fit(tmp_path, {"train": Rows(kind), "model": Both(), "inputs": split}, max_steps=1)


class Records(Dataset):
    """Samples that are dicts of numbers."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Three(nn.Module):
    """A model of three arguments."""

    def __init__(self):
        super().__init__()
        self.net = tiny.model()

    def forward(self, x, t, w):
        return self.net(x - 2 * t + 3 * w)


class Triples(Dataset):
    """Samples ((x, t), w, y), or (w, (x, t), y), whose nested part has this type."""

    def __init__(self, kind, *, is_first):
        self.kind, self.is_first = kind, is_first

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        pair, w = {"x": X[index], "t": X[index] ** 2}, X[index] ** 3
        pair = pair if self.kind is dict else self.kind(pair.values())
        return (pair, w, Y[index]) if self.is_first else (w, pair, Y[index])


@pytest.mark.parametrize("kind", [tuple, list, dict])
@pytest.mark.parametrize("is_first", [True, False])
def test_nested_input_among_others_is_passed_with_them(tmp_path, kind, is_first):
    data = Triples(kind, is_first=is_first)
    with pytest.raises(TaskError) as caught:
        tiny.fit(tmp_path, {"train": data, "model": Three()})
    star = f"*batch[{0 if is_first else 1}]{'.values()' if kind is dict else ''}"
    both = f"{star}, batch[1]" if is_first else f"batch[0], {star}"
    assert f"Task(inputs=lambda batch: (({both}), batch[-1]))" in str(caught.value)
    assert "if others are, pass them with it, as a tuple" in str(caught.value)
    inputs = eval(f"lambda batch: (({both}), batch[-1])")
    tiny.fit(tmp_path, {"train": data, "model": Three(), "inputs": inputs}, max_steps=1)


@pytest.mark.parametrize("make", [list, Records])
@pytest.mark.parametrize("part", ["train", "val"])
def test_records_of_numbers_are_named_with_how_to_stack_them(tmp_path, make, part):
    rows = [
        {**dict(zip("abcd", x, strict=True)), "label": y}
        for x, y in zip(X.tolist(), Y.tolist(), strict=True)
    ]
    with pytest.raises(TaskError) as caught:
        tiny.fit(tmp_path, {part: make(rows)}, max_steps=1)
    text = "(torch.stack([batch[name] for name in batch if name != 'label'], 1).float(), batch['la"
    assert f"Task(inputs=lambda batch: {text}bel']))" in str(caught.value)
    assert "got no tensor" not in str(caught.value)
    if part == "train":
        inputs = eval(f"lambda batch: {text}bel'])")
        a, b = tiny.model(), tiny.model()
        tiny.fit(tmp_path, {"model": a, "train": make(rows), "inputs": inputs}, max_steps=3)
        tiny.fit(tmp_path / "tensors", {"model": b, "train": (X, Y)}, max_steps=3)
        assert torch.equal(a[0].weight, b[0].weight)


def test_dict_with_other_names_than_the_arguments_is_named(tmp_path):
    data = {"a": X, "label": Y}
    with pytest.raises(TaskError) as caught:
        tiny.fit(tmp_path, {"train": data})
    text = "((batch['a'],), batch['label'])"
    assert "(Sequential) got (8, 4) of torch.float32. The parts of a dict" in str(caught.value)
    assert f"Task(inputs=lambda batch: {text})" in str(caught.value)
    tiny.fit(tmp_path, {"train": data, "inputs": eval(f"lambda batch: {text}")}, max_steps=1)


def test_attribute_error_of_a_model_with_plain_inputs_is_not_explained(tmp_path):
    class Wrong(nn.Module):
        def forward(self, x):
            return self.missing(x)

    with pytest.raises(AttributeError, match="missing"):
        tiny.fit(tmp_path, {"model": nn.Sequential(tiny.model(), Wrong())})


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss(), nn.L1Loss(), "multiclass"])
def test_missing_targets_are_named_with_what_to_do(tmp_path, part, loss):
    def inputs(batch):
        return batch[0], (None if len(batch) == 1 else batch[1])

    targets = torch.zeros(len(X), 3) if not isinstance(loss, (nn.CrossEntropyLoss, str)) else Y
    parts = {"train": (X, targets), "val": (X, targets), "loss": loss, "inputs": inputs}
    with pytest.raises(DataError) as caught:
        tiny.fit(tmp_path, {**parts, part: (X,)})
    assert "The targets of a batch are None, and " in str(caught.value)
    assert "Task(inputs=lambda batch: (batch[0], batch[0]))" in str(caught.value)


def own_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def is_right(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


UNSUPERVISED = {"loss": lambda outputs, _: outputs.square().mean(), "val": (X, Y)}
OF_TARGETS = [
    {"loss": nn.CrossEntropyLoss()},
    {"loss": nn.MSELoss()},
    {"loss": nn.functional.cross_entropy},
    {"loss": nn.MultiMarginLoss()},
    {"loss": nn.KLDivLoss(reduction="batchmean")},
    {"loss": "multiclass"},
    {"loss": "mse"},
    {"loss": own_loss},
    {"loss": own_loss, "items": "tokens"},
    {"loss": lambda outputs, targets: nn.functional.l1_loss(outputs, targets)},
    {**UNSUPERVISED, "metrics": {"right": is_right}},
    {**UNSUPERVISED, "metrics": {"right": surestep.whole_set(is_right)}},
]


@pytest.mark.parametrize("parts", OF_TARGETS)
@pytest.mark.parametrize("targets", [(Y, Y), [Y, Y], {"a": Y, "b": Y}, None])
def test_targets_that_are_not_a_tensor_are_named_with_what_to_do(tmp_path, parts, targets):
    def inputs(batch):
        rows = len(batch[0])
        if isinstance(targets, dict):
            return batch[0], {name: one[:rows] for name, one in targets.items()}
        return batch[0], targets and type(targets)(one[:rows] for one in targets)

    with pytest.raises((TaskError, DataError)) as caught:
        tiny.fit(tmp_path, {"inputs": inputs, **parts})
    if targets is None:
        assert "The targets of a batch are None, and " in str(caught.value)
        assert "(x, y) from the dataset, and from Task(inputs=...) if it is" in str(caught.value)
        return
    kind, first = type(targets).__name__, "'a'" if isinstance(targets, dict) else 0
    assert f"The targets of a batch are a {kind} of 2. " in str(caught.value)
    assert f"Task(inputs=lambda batch: (batch[0], batch[-1][{first}]))" in str(caught.value)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.MSELoss(), own_loss])
def test_targets_that_are_text_are_named(tmp_path, loss):
    parts = {"train": [(row, "cat") for row in X], "loss": loss}
    with pytest.raises((TaskError, DataError)) as caught:
        tiny.fit(tmp_path, parts)
    told = "The targets of a batch, its last part, hold no tensor, but 'cat'. Return a tensor of"
    assert told in str(caught.value)


def test_none_as_targets_of_several_losses_is_named(tmp_path):
    parts = {"loss": {"a": nn.CrossEntropyLoss()}, "inputs": lambda batch: (batch[0], None)}
    with pytest.raises(DataError, match=r"are None, and loss\['a'\] compares"):
        tiny.fit(tmp_path, parts)


@pytest.mark.parametrize("targets", [(Y, Y), None])
def test_error_in_a_function_that_counts_items_is_its_own(tmp_path, targets):
    parts = {"loss": own_loss, "items": lambda batch: batch.missing}
    with pytest.raises(AttributeError, match="missing"):
        tiny.fit(tmp_path, {**parts, "inputs": lambda batch: (batch[0], targets)})


def test_batch_of_none_is_named(tmp_path):
    with pytest.raises(DataError, match=r"A batch is None\. Return \(x, y\) .* 0 rows"):
        tiny.fit(tmp_path, {"train": Rows(tuple), "collate_fn": lambda samples: None})
