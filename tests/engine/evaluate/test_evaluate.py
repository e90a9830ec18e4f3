import math
import random

import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import default_collate as torch_collate

import surestep
from surestep import losses
from surestep.base.errors import DataError, TaskError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.evaluate import evaluate
from surestep.engine.evaluate.evaluate import EvalAccumulator, eval_mode
from surestep.engine.losses.adapt import as_loss, as_losses
from surestep.engine.own_generators import OwnGenerators
from tests import tiny

X, Y = tiny.data(20)
MASKED = Y.masked_fill(torch.arange(20) % 3 == 0, -100)


def accuracy(outputs, targets):
    kept = targets != -100
    return (outputs.argmax(1)[kept] == targets[kept]).double().mean()


def mean_loss(model):
    return float(nn.CrossEntropyLoss()(model(X), Y).detach())


def evaluated(tmp_path, size, val, part=None, **parts):
    parts = {"val": val, "metrics": {"accuracy": accuracy}, **parts}
    with tiny.prepare(tmp_path / str(size), parts, validation={"batch_size": size}) as session:
        return session.evaluate(part)


class DrawsAtEnd:
    """A metric that draws a number when it is computed."""

    def update(self, outputs, targets):
        torch.rand(len(targets))

    def reset(self):
        pass

    def compute(self):
        return float(torch.rand(()))


class OfMode(nn.Module):
    """A mean over samples, ten times as large in train mode."""

    def forward(self, outputs, targets):
        return outputs.square().mean() * (10.0 if self.training else 1.0)


def test_loss_is_evaluated_in_its_eval_mode_and_metrics_are_seeded_at_their_end(tmp_path):
    net, loss = tiny.model(), OfMode()
    parts = {"model": net, "loss": loss, "metrics": {"drawn": DrawsAtEnd()}}
    found = [evaluated(tmp_path, size, (X, Y), **parts) for size in (4, 7)]
    assert found[0]["val/loss"] == pytest.approx(float(net(X).square().mean().detach()))
    assert found[0]["val/drawn"] == found[1]["val/drawn"]
    assert loss.training


def test_batches_that_are_ready_weigh_as_their_samples(tmp_path):
    ready = [(X[:7], Y[:7]), (X[7:8], Y[7:8]), (X[8:], Y[8:])]
    rows = surestep.whole_set(lambda outputs, targets: len(targets))
    parts = {"train": ready, "batched": True, "metrics": {"accuracy": accuracy, "rows": rows}}
    with tiny.prepare(tmp_path, {**parts, "val": ready}, batch_size=1) as session:
        found = session.evaluate()
        outputs = session.model(X).detach()
    assert found["val/accuracy"] == pytest.approx(float((outputs.argmax(1) == Y).double().mean()))
    assert found["val/rows"] == len(Y)


def test_metric_counts_samples_of_a_batch_without_items_and_none_that_are_left_out(tmp_path):
    ignored = torch.cat([torch.full((5,), -100), Y[5:]])
    counts = {"rows": surestep.whole_set(lambda outputs, targets: len(targets))}
    assert evaluated(tmp_path, 5, (X, ignored), metrics=counts)["val/rows"] == len(Y)

    def mean(outputs, targets):
        return targets.double().mean()

    parts = {"loss": lambda outputs, targets: outputs.square().mean(), "metrics": {"mean": mean}}
    samples = [*zip(X[:11], torch.arange(11), strict=True)]
    val = DataLoader(samples, 4, collate_fn=lambda given: torch_collate(given[1:]))
    found = evaluated(tmp_path, 4, val, **parts)
    assert found["val/mean"] == pytest.approx(sum((1, 2, 3, 5, 6, 7, 9, 10)) / 8)


def test_each_of_several_losses_has_its_own_divisor():
    def total(outputs, targets):
        return outputs.sum()

    parts = {"sum": total, "mean": nn.MSELoss(), "none": nn.MSELoss()}
    loss = as_losses(parts, {}, {"mean": 2.0, "none": 5.0}, {"sum": "sum"})
    totals = EvalAccumulator(loss, {}, torch.device("cpu"))
    ones = torch.ones(4, 1)
    totals.parts["sum"].add(ones, ones, items=3)
    totals.parts["mean"].add(3 * ones, ones, items=4)
    totals.count(8)
    assert {name: value for name, value in totals.losses().items() if value == value} == {
        **{"loss_sum": 4 / 8, "loss_mean": 4.0},
        "loss": 4 / 8 + 2.0 * 4.0,
    }
    assert math.isnan(totals.losses()["loss_none"])


def test_sum_over_samples_without_an_item_is_nan():
    totals = EvalAccumulator(
        as_loss(lambda outputs, targets: outputs.sum(), "samples", "sum"), {}, torch.device("cpu")
    )
    totals.count(8)
    assert math.isnan(totals.losses()["loss"])


@pytest.mark.parametrize("size", [1, 7, 19, 100])
def test_evaluation_does_not_depend_on_its_batch_size(tmp_path, size):
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.0, 2.0]))
    found = evaluated(tmp_path, size, (X, MASKED), loss=weighted)
    outputs = tiny.model()(X).detach()
    assert found["val/loss"] == pytest.approx(float(weighted(outputs, MASKED)), rel=1e-6)
    assert found["val/accuracy"] == pytest.approx(float(accuracy(outputs, MASKED)))


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize(
    ("loss", "hidden", "outputs"),
    [
        (losses.focal(), -100, 3),
        (losses.multiclass(), -100, 3),
        (losses.binary(ignore_index=-1), -1, 1),
    ],
    ids=["focal", "multiclass", "binary"],
)
def test_metric_is_weighted_by_the_targets_that_are_not_ignored(
    tmp_path, size, loss, hidden, outputs
):
    def right(outputs, targets):
        kept = targets != hidden
        found = outputs.argmax(1) if outputs.shape != targets.shape else (outputs > 0).long()
        return (found[kept] == targets[kept]).double().mean()

    targets = MASKED if outputs == 3 else Y.clamp(max=1)[:, None].masked_fill(X[:, :1] > 0, hidden)
    model = nn.Sequential(nn.Linear(X.shape[1], outputs))
    parts = {"loss": loss, "train": (X, targets), "model": model, "metrics": {"right": right}}
    expected = float(right(model(X).detach(), targets))
    found = evaluated(tmp_path, size, (X, targets), **parts)
    assert found["val/right"] == pytest.approx(expected)


def test_several_validation_sets_are_evaluated_by_name(tmp_path):
    sets = {"near": (X[:9], Y[:9]), "far": (X[9:] * 5, Y[9:])}
    found = evaluated(tmp_path, 4, sets)
    assert list(found) == ["near/loss", "near/accuracy", "far/loss", "far/accuracy"]
    alone = evaluated(tmp_path, 5, sets, part="near")
    assert list(alone) == ["near/loss", "near/accuracy"]
    assert alone["near/loss"] == pytest.approx(found["near/loss"])
    assert found["near/loss"] != found["far/loss"]


def test_metric_object_shared_by_sets_is_reset_for_each_set(tmp_path):
    metric = torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro")
    sets = {"right": (X, tiny.model()(X).argmax(1)), "any": (X, Y)}
    found = evaluated(tmp_path, 6, sets, metrics={"acc": metric})
    assert found["right/acc"] == 1.0
    assert found["any/acc"] == pytest.approx(float(accuracy(tiny.model()(X), Y)))


def test_target_out_of_range_in_an_evaluation_is_named(tmp_path):
    with pytest.raises(DataError, match=r"target 9 of sample 0 .* the evaluation of the val data"):
        evaluated(tmp_path, 4, (X, Y + 7), metrics={})


def test_loss_and_metric_of_a_set_without_items_are_nan(tmp_path):
    found = evaluated(tmp_path, 4, (X, torch.full_like(Y, -100)))
    assert math.isnan(found["val/loss"])
    assert math.isnan(found["val/accuracy"])


@pytest.mark.parametrize("size", [1, 3, 20])
def test_summed_loss_is_reported_per_sample(tmp_path, size):
    loss = nn.CrossEntropyLoss(reduction="sum")
    found = evaluated(tmp_path, size, (X, Y), loss=loss)
    total = float(loss(tiny.model()(X), Y).detach())
    assert found["val/loss"] == pytest.approx(total / len(X), rel=1e-6)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_loss_summed_over_elements_is_reported_per_sample(tmp_path, size):
    loss, targets = nn.MSELoss(reduction="sum"), torch.ones(len(X), 3)
    data = (X, targets)
    found = evaluated(tmp_path, size, data, loss=loss, metrics={}, train=data)
    total = float(loss(tiny.model()(X), targets).detach())
    assert found["val/loss"] == pytest.approx(total / len(X), rel=1e-6)


@pytest.mark.parametrize("size", [1, 3, 20])
def test_samples_without_items_count_in_the_divisor_of_a_summed_loss(tmp_path, size):
    loss = nn.CrossEntropyLoss(reduction="sum")
    found = evaluated(tmp_path, size, (X, MASKED), loss=loss)
    total = float(loss(tiny.model()(X), MASKED).detach())
    assert found["val/loss"] == pytest.approx(total / len(X), rel=1e-6)


def test_plan_says_that_a_summed_loss_is_reported_per_sample():
    plan = tiny.plan({"loss": nn.MSELoss(reduction="sum")}).plan
    assert plan.reason("loss") == (
        "a sum over the batch, set by you; evaluations report it per sample"
    )


def test_test_set_and_training_data_can_be_evaluated(tmp_path):
    with tiny.prepare(tmp_path, {"test": (X[:5], Y[:5])}) as session:
        assert list(session.evaluate("test")) == ["test/loss"]
        assert session.evaluate("train")["train/loss"] == pytest.approx(
            mean_loss(session.model), rel=1e-5
        )


def test_evaluation_of_the_training_data_ignores_drop_last(tmp_path):
    with tiny.prepare(tmp_path, {}, data={"drop_last": True}) as session:
        assert session.evaluate("train")["train/loss"] == pytest.approx(
            mean_loss(session.model), rel=1e-5
        )


def test_forward_that_changes_its_input_in_place_does_not_change_the_data(tmp_path):
    class Scaling(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(3))

    torch.manual_seed(0)
    parts = {"model": Scaling(4, 3), "train": (X.clone(), Y), "val": (X.clone(), Y)}
    with tiny.prepare(tmp_path, parts) as session:
        assert session.evaluate() == session.evaluate()


def test_eval_mode_restores_the_mode_of_each_module():
    model = nn.Sequential(nn.Dropout(), nn.Dropout(), nn.Dropout())
    model[1].eval()

    def measure():
        with eval_mode(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        measure()
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_tensor_cached_in_an_evaluation_can_be_used_in_training(tmp_path):
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.table = tiny.model(), None

        def forward(self, x):
            if self.table is None:
                self.table = torch.ones(3) * 2
            return self.inner(x) * self.table

    assert tiny.fit(tmp_path, {"model": Caching(), "val": (X, Y)}).status["status"] == "finished"


def test_two_values_of_one_name_are_rejected():
    class Pair:
        higher_is_better = True

        def reset(self):
            pass

        def update(self, outputs, targets):
            pass

        def compute(self):
            return {"x": 1.0}

    metrics = {"f": Pair(), "f_x": lambda outputs, targets: outputs.mean()}
    totals = EvalAccumulator(as_loss(torch.nn.MSELoss(), "samples"), metrics, torch.device("cpu"))
    with pytest.raises(
        TaskError, match=r"metrics\['f_x'\] gives a value called 'f_x', and so does"
    ):
        totals.compute()


class Lines:
    """A stream without a length."""

    def __iter__(self):
        return zip(*tiny.data(20), strict=True)


class Slow(Lines):
    """One that the test clock reads for more than a minute."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(evaluate.time, "monotonic", lambda: self.now)

    def __iter__(self):
        for sample in super().__iter__():
            self.now += 10
            yield sample


def test_stream_that_may_never_end_is_named_once(tmp_path, monkeypatch):
    parts = {"model": tiny.model(), "val": Slow(monkeypatch)}
    with tiny.prepare(tmp_path / "run", parts, validation={"batch_size": 2}) as session:
        with pytest.warns(UserWarning, match="val data is a stream without a length") as warned:
            session.evaluate()
        session.evaluate()  # it has ended once
        with pytest.warns(UserWarning, match=r"val=lambda: itertools\.islice\(make_samples\(\), "):
            session.predict("val")
    texts = [str(one.message) for one in warned if "without a length" in str(one.message)]
    assert len(texts) == 1
    assert " 6 samples of it were read in 60 s" in texts[0]
    assert "For evaluations during a run, limit_val_batches=100 is enough." in texts[0]


class Rank(Communicator):
    """One of two ranks: the first sends its sums, and the second adds them to its own."""

    def __init__(self, rank, sent):
        super().__init__(rank, 2)
        self.sent = sent

    def all_reduce_sum(self, values):
        if self.rank == 0:
            self.sent.append(values)
            return values
        return [own + other for own, other in zip(values, self.sent.pop(0), strict=True)]


def test_loss_without_items_on_one_rank_counts_in_the_sum_of_all_losses():
    """The first rank has no item of the second loss, and the second none of the first."""
    losses = {"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()}
    loss = tiny.plan({"loss": losses, "train": {"x": X, "kind": Y, "size": X}}).loss
    outputs, sent = tiny.model()(X).detach(), []
    for rank, part, own, targets in ((0, "kind", outputs, Y), (1, "size", X, X + 2)):
        totals = EvalAccumulator(loss, {}, torch.device("cpu"), Rank(rank, sent))
        totals.parts[part].add(own, targets, targets.numel())
        totals.count(len(X))
        found = totals.losses()
    both = nn.functional.cross_entropy(outputs, Y) + nn.functional.mse_loss(X, X + 2)
    assert found["loss"] == pytest.approx(float(both), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"limit_val_batches": 5}])
def test_stream_that_ends_in_time_or_is_limited_causes_no_warning(tmp_path, monkeypatch, options):
    data = Slow(monkeypatch) if options else Lines()
    with tiny.prepare(tmp_path, {"val": data}, validation={"batch_size": 2}, **options) as session:
        session.evaluate()


class Noisy(nn.Module):
    """Draws in eval mode too, from its own generator."""

    def __init__(self):
        super().__init__()
        self.inner, self.rng = tiny.model(), torch.Generator()

    def forward(self, x):
        return self.inner(x) + torch.randn(len(x), 1, generator=self.rng)


class Draws:
    """A metric that makes its generator again for each evaluation."""

    def reset(self):
        self.rng, self.drawn = random.Random(), []

    def update(self, outputs, targets):
        self.drawn.append(self.rng.random())

    def compute(self):
        return sum(self.drawn)


def test_evaluations_search_for_generators_once_in_a_process(tmp_path, monkeypatch):
    searches, search = [], OwnGenerators._find
    monkeypatch.setattr(
        OwnGenerators, "_find", lambda own: (searches.append(own.roots), search(own))[1]
    )
    parts = {"model": Noisy(), "val": {"near": (X, Y), "far": (X, Y)}}
    with tiny.prepare(tmp_path, parts, validation={"batch_size": 8}) as session:
        searches.clear()
        found = [session.evaluate() for _ in range(3)]
    assert found[0] == found[1] == found[2]
    assert len(searches) == 1


def test_generator_that_a_metric_makes_for_each_evaluation_is_seeded(tmp_path):
    parts = {"val": (X, Y), "metrics": {"drawn": Draws()}, "model": Noisy()}
    with tiny.prepare(tmp_path, parts, validation={"batch_size": 8}) as session:
        found = [session.evaluate() for _ in range(3)]
    assert found[0] == found[1] == found[2]
