import math

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn

import surestep
from surestep.base.errors import TaskError
from surestep.engine.metrics.base import init_metrics, metric_modes, pop_logged
from tests import tiny

CPU = torch.device("cpu")
OUTPUTS, TARGETS = tiny.model()(tiny.data()[0]).detach(), tiny.data()[1]


def accuracy(outputs, targets):
    return (outputs.argmax(dim=1) == targets).double().mean()


def counted(outputs, targets):
    return (outputs.argmax(dim=1) == targets).sum(), targets.numel()


def measured(metric, cut):
    """Evaluate in batches of `cut` samples."""
    (opened,) = init_metrics({"m": metric}, CPU)
    for start in range(0, len(TARGETS), cut):
        targets = TARGETS[start : start + cut]
        at = range(start, start + len(targets))
        opened.update(OUTPUTS[start : start + cut], targets, len(targets), at)
    return opened.compute()


@pytest.mark.parametrize("cut", [1, 3, 7, 20])
@pytest.mark.parametrize(
    "metric",
    [
        accuracy,
        counted,
        lambda o, t: float(accuracy(o, t)),
        torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro"),
    ],
    ids=["mean", "sum and count", "number", "torchmetrics"],
)
def test_metric_does_not_depend_on_the_batch_size(metric, cut):
    assert measured(metric, cut) == {"m": pytest.approx(float(accuracy(OUTPUTS, TARGETS)))}


SUMMANDS = [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int32, torch.bool]
NUMPY = [np.float16, np.float32, np.uint8]


@pytest.mark.parametrize("kind", [*SUMMANDS, *NUMPY], ids=str)
def test_sum_and_count_of_any_type_are_added_up_exactly(kind):
    def some(outputs, targets):
        rows = int(outputs[0])
        return tuple(
            torch.tensor(n, dtype=kind) if isinstance(kind, torch.dtype) else kind(n)
            for n in (rows > 1, rows)
        )

    (opened,) = init_metrics({"m": some}, CPU)
    sizes = [1 if kind == torch.bool else 1 + row % 7 for row in range(5000)]
    for size in sizes:
        opened.update(torch.tensor([size]), None, 1, range(1))
    right = sum(size > 1 for size in sizes) / sum(sizes)
    assert opened.compute() == {"m": right}


def test_count_in_fp32_does_not_stop_at_2_to_24():
    (opened,) = init_metrics({"m": lambda o, t: (o.sum(), o.sum())}, CPU)
    for value in (2.0**24, *[1.0] * 100):
        opened.update(torch.tensor([value]), None, 1, range(1))
    assert float(opened.count) == 2**24 + 100
    assert opened.compute() == {"m": 1.0}


def test_mean_over_more_than_2_to_24_samples_is_exact():
    (opened,) = init_metrics({"m": lambda o, t: o.mean()}, CPU)
    for value, count in ((1.0, 2**24), *[(2.0, 1)] * 100):
        opened.update(torch.tensor([value]), None, count, range(1))
    assert opened.compute() == {"m": (2**24 + 200) / (2**24 + 100)}


LARGE = 2**24 + 1  # fp32 has no such number


@pytest.mark.parametrize(
    "value",
    [LARGE, float(LARGE), np.float64(LARGE), torch.tensor(LARGE), torch.tensor(LARGE).double()],
    ids=lambda value: type(value).__name__,
)
def test_mean_that_fp32_cannot_hold_is_exact(value):
    assert measured(lambda o, t: value, 7) == {"m": LARGE}
    assert measured(lambda o, t: (value * len(t), len(t)), 7) == {"m": LARGE}


def test_metric_object_is_reset_before_each_evaluation():
    metric = torchmetrics.MeanMetric()
    metric.update(100.0)
    (opened,) = init_metrics({"m": metric}, CPU)
    opened.metric.update(1.0)
    assert opened.compute() == {"m": 1.0}


def test_object_with_several_names_gets_each_batch_once_for_each():
    table = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=3)
    metrics = {"one": table, "two": table, "all": torchmetrics.MetricCollection({"in": table})}
    opened = init_metrics(metrics, CPU)
    for metric in opened:
        metric.update(OUTPUTS, TARGETS, len(TARGETS), range(len(TARGETS)))
    plain = torchmetrics.ConfusionMatrix(task="multiclass", num_classes=3)
    expected = plain(OUTPUTS, TARGETS).tolist()
    values = [value for metric in opened for value in metric.compute().values()]
    assert values == [expected] * 3


def test_metric_collection_has_a_name_for_each_value():
    collection = torchmetrics.MetricCollection(
        {"micro": torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro")}
    )
    assert list(measured(collection, 7)) == ["m_micro"]


def test_mean_over_no_samples_is_nan():
    (opened,) = init_metrics({"m": accuracy}, CPU)
    assert math.isnan(opened.compute()["m"])


def test_pair_of_sum_and_count_is_added_also_for_a_batch_without_targets_of_the_loss():
    pairs = iter([(3.0, 4), (math.nan, 0), (1.0, 1)])
    (opened,) = init_metrics({"m": lambda outputs, targets: next(pairs)}, CPU)
    for counted_by_loss in (0, 0, 8):
        opened.update(None, None, counted_by_loss, range(8))
    assert opened.compute() == {"m": (3 + 1) / (4 + 1)}


def test_python_float_of_a_metric_is_preserved_exactly():
    assert measured(lambda o, t: 0.1, 20) == {"m": 0.1}


def test_metric_that_returns_one_value_per_sample_is_rejected():
    with pytest.raises(TaskError, match=r"metrics\['m'\] returned a tensor of shape \(7,\).*mean"):
        measured(lambda o, t: o.argmax(1) == t, 7)


def test_mode_comes_from_higher_is_better_of_the_metric():
    assert metric_modes("m", torchmetrics.Accuracy(task="binary"))["m"] == "max"
    assert metric_modes("m", torchmetrics.MeanSquaredError())["m"] == "min"
    assert metric_modes("m", accuracy)["m"] is None


def test_higher_is_better_that_is_no_bool_says_nothing():
    class Odd(torchmetrics.MeanSquaredError):
        higher_is_better = ["loss"]

    assert metric_modes("m", Odd()) == {"m": None}


def test_log_rejects_values_that_are_not_scalar_tensors():
    with pytest.raises(TaskError, match=r"log\('x', ...\) takes a scalar tensor, and got \(2,\)"):
        surestep.log("x", torch.zeros(2))
    with pytest.raises(TaskError, match="got float"):
        surestep.log("x", 1.0)


def test_log_detaches_the_value():
    weight = torch.ones(1, requires_grad=True)
    surestep.log("x", weight * 2)
    ((name, value, _),) = pop_logged()
    assert (name, float(value), value.requires_grad, value.shape) == ("x", 2.0, False, ())
    assert pop_logged() == []


class Logging(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny.model()

    def forward(self, x):
        surestep.log("rows", torch.tensor(float(len(x))))
        return self.inner(x)


class LoggingSome(Logging):
    """Logs in the micro-batches that have a first feature above a limit, and how many are large."""

    def forward(self, x):
        if x[0, 0] > 0:
            surestep.log("first", x[0, 0])
            surestep.log("large", (x > 0).sum())
        return self.inner(x)


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("manual", [False, True])
def test_value_that_some_micro_batches_log_is_their_mean_by_items(tmp_path, size, manual):
    x, y = tiny.data()
    x = x.roll(9, 0)
    parts = {"model": LoggingSome(), "train": (x, y)}
    if manual:

        def step(manual_step):
            for micro in manual_step.micro_batches("inner"):
                loss = nn.functional.cross_entropy(manual_step.model(*micro.args), micro.targets)
                manual_step.backward(loss, micro)
            manual_step.step("inner")

        optimizers = {"inner": surestep.Optim()}
        parts |= {"loss": None, "step": step, "optimizers": optimizers}
        parts["inputs"] = lambda batch: batch
    options = {"data": {"shuffle": False}, "micro_batch_size": size, "epochs": 1}
    found = logged(tiny.fit(tmp_path, parts, **options))
    expected = {"first": [], "large": []}
    for batch in x.split(8):
        micro = [each for each in batch.split(size) if each[0, 0] > 0]
        items = sum(map(len, micro))
        first = sum(float(each[0, 0]) * len(each) for each in micro)
        large = sum(int((each > 0).sum()) * len(each) for each in micro)
        expected["first"].append(pytest.approx(first / items, rel=1e-12) if items else None)
        expected["large"].append(pytest.approx(large / items, rel=1e-12) if items else None)
    assert {name: found[name] for name in expected} == expected


class LoggingTwice(Logging):
    """Logs once in a micro-batch of few samples, and twice in others."""

    def forward(self, x):
        for part in x.split(3):
            surestep.log("part", part[0, 0])
        return self.inner(x)


def test_micro_batch_that_logs_twice_weighs_as_its_items(tmp_path):
    options = {"data": {"shuffle": False}, "micro_batch_size": 5, "epochs": 1, "batch_size": 8}
    found = logged(tiny.fit(tmp_path, {"model": LoggingTwice()}, **options))["part"]
    first = tiny.data()[0][:, 0].double()
    expected = [(5 * (at[0] + at[3]) / 2 + 3 * at[5]) / 8 for at in first[:16].split(8)]
    assert found[:2] == pytest.approx([float(value) for value in expected])


def test_logged_integer_keeps_its_digits(tmp_path):
    class Counting(Logging):
        def forward(self, x):
            surestep.log("tokens", torch.tensor(2**24 + 1))
            return self.inner(x)

    found = logged(tiny.fit(tmp_path, {"model": Counting()}, epochs=1, micro_batch_size=3))
    assert found["tokens"] == [2**24 + 1] * 3


def noted_loss(outputs, targets):
    surestep.log("targets", targets.double().mean())
    return nn.functional.cross_entropy(outputs, targets)


def logged(run):
    steps = [event for event in run.events() if event["event"] == "steps"]
    return {
        name: [v for each in steps for v in each["logged"][name]] for name in steps[0]["logged"]
    }


def test_values_logged_by_model_and_loss_are_in_the_events(tmp_path):
    parts = {"model": Logging(), "loss": noted_loss}
    run = tiny.fit(tmp_path, parts, epochs=1, data={"shuffle": False})
    targets = tiny.data()[1].double()
    assert logged(run) == {
        "rows": [8.0, 8.0, 4.0],
        "targets": [pytest.approx(float(each.mean())) for each in targets.split(8)],
    }


def test_values_logged_in_an_evaluation_are_not_in_the_step_events(tmp_path):
    parts = {"model": Logging(), "val": tiny.data(3)}
    run = tiny.fit(tmp_path, parts, epochs=1, validation={"every": "1 step"})
    assert logged(run) == {"rows": [8.0, 8.0, 4.0]}


def test_named_terms_of_a_loss_are_logged_as_means(tmp_path):
    def parts_loss(outputs, targets):
        return {"ce": nn.functional.cross_entropy(outputs, targets), "l2": outputs.square().mean()}

    run = tiny.fit(tmp_path, {"loss": parts_loss}, epochs=1, micro_batch_size=3)
    steps = [event for event in run.events() if event["event"] == "steps"]
    parts = logged(run)
    assert parts.keys() == {"ce", "l2"}
    losses = [loss for event in steps for loss in event["loss"]]
    assert [a + b for a, b in zip(parts["ce"], parts["l2"], strict=True)] == pytest.approx(losses)


class Counting:
    """A metric with the methods of torchmetrics, which is neither a module nor callable."""

    higher_is_better = True

    def __init__(self):
        self.devices = []
        self.reset()

    def reset(self):
        self.right = self.seen = 0

    def to(self, device):
        self.devices.append(device)
        return self

    def update(self, outputs, targets):
        self.right += int((outputs.argmax(dim=1) == targets).sum())
        self.seen += len(targets)

    def compute(self):
        return {"accuracy": self.right / self.seen, "seen": self.seen}


@pytest.mark.parametrize("size", [3, 20])
def test_object_with_update_compute_and_reset_is_a_metric(tmp_path, size):
    metric = Counting()
    val = tiny.data(30, seed=3)
    with tiny.prepare(
        tmp_path / "run", {"val": val, "metrics": {"m": metric}}, validation={"batch_size": size}
    ) as session:
        found = session.evaluate()
        outputs = session.model.eval()(val[0])
    assert found["val/m_seen"] == 30
    assert found["val/m_accuracy"] == pytest.approx(float(accuracy(outputs, val[1])))
    assert set(metric.devices) == {CPU}


class Halfway:
    def compute(self):
        return 0.0


class NoReset(Halfway):
    def update(self, outputs, targets): ...


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (Counting, r"metrics\['m'\]=Counting is a class. Write Counting\(\)"),
        (torchmetrics.MeanMetric, "Write MeanMetric()"),
        (Halfway(), r"metrics\['m'\] is a Halfway, which is not a function"),
        (NoReset(), "NoReset, which is not .* an object with update, compute and reset"),
        (3, r"metrics\['m'\] is a int, which is not a function"),
    ],
)
def test_object_that_is_not_a_metric_is_rejected_with_what_it_lacks(metric, words):
    with pytest.raises(TaskError, match=words.replace("()", r"\(\)")):
        tiny.task(metrics={"m": metric})
