"""Which evaluations are among the best."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

import surestep
from surestep.config.duration import parse_duration
from surestep.engine.distributed.communicator import ALONE
from surestep.engine.schedule.lr import PlateauState
from surestep.engine.state.state import BestMetric, Progress
from surestep.trainer.best_metric import TopK, measure_on, reset_best, update_best
from tests import tiny
from tests.engine.schedule.test_plateau import OWN
from tests.record.checkpoint.test_retention import saved_with


class Rows(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.randn(4), torch.tensor(0)


@pytest.fixture
def ranked(tmp_path):
    """Rank by val/a and keep the best two; lower is better."""
    plan = SimpleNamespace(validation_metric="val/a", validation_mode="min", checkpoint_keep_best=2)
    return SimpleNamespace(plan=plan, state=tiny.state_of(), world=ALONE)


def taken(ranking, values):
    """Add values by step; return the steps that are among the best."""
    state, found = ranking._loop.state, []
    for step, value in values.items():
        state.progress, state.best.latest = state.progress._replace(step=step), {"val/a": value}
        found += [step] if ranking.is_top_k() else []
    return found


def test_value_no_better_than_the_best_two_is_not_ranked(tmp_path, ranked):
    values = {1: 5.0, 2: math.nan, 3: 3.0, 4: 5.0, 5: 6.0, 6: 4.0, 7: 1.0}
    assert taken(TopK(ranked, tmp_path), values) == [1, 3, 6, 7]


def test_checkpoints_already_in_the_run_are_ranked(tmp_path, ranked):
    saved_with(tmp_path, [3.0, math.nan, 4.0])
    assert taken(TopK(ranked, tmp_path), {4: 5.0, 5: 3.5}) == [5]


def test_checkpoints_of_other_samples_and_of_undone_steps_are_not_ranked(tmp_path, ranked):
    """Of two checkpoints with equal values, only one is of the samples that are measured now."""
    saved_with(tmp_path, [1.0, 2.0], data=["same", "other"])
    ranked.state.best.data = "same"
    ranked.state.spikes.skipped_steps.append((1, 3))  # undone before the checkpoints were saved
    ranking = TopK(ranked, tmp_path)
    assert ranking.values == {1: 1.0}
    assert taken(ranking, {4: 3.0, 5: 2.5}) == [4, 5]
    assert ranking.values == {1: 1.0, 4: 3.0, 5: 2.5}


def test_plateau_of_an_optimizer_falls_by_its_own_options():
    schedule = {"name": "reduce_on_plateau", "curve_options": {**OWN, "patience": 0, "factor": 0.1}}
    plans = {
        name: SimpleNamespace(
            optim_lr=1.0, schedule=SimpleNamespace(**schedule, min_lr_ratio=floor)
        )
        for name, floor in (("", 0.01), ("a", 0.5), ("b", 0.2))
    }
    plan = SimpleNamespace(
        validation_metric="val/a", validation_mode="min", early_stop_min_delta=0.0
    )
    plan.early_stop_start, plan.schedule, plan.optim_lr = None, plans[""].schedule, 1.0
    plan.optimizers = plans
    state = tiny.state_of()
    state.plateaus = {"a": PlateauState(), "b": PlateauState()}
    lines = [list(update_best(plan, state, {"val/a": 1.0}, lr=1.0)) for _ in range(2)]
    fall = "val/a is on a plateau: the learning rate{} falls to {} of its peak."
    assert lines == [
        [],
        [fall.format("", 0.1), fall.format(" of a", 0.5), fall.format(" of b", 0.2)],
    ]
    assert [each.scale for each in (state.plateau, *state.plateaus.values())] == [0.1, 0.5, 0.2]
    best = state.best
    assert (best.metric, best.best, best.best_step, best.since_best) == ("val/a", 1.0, 2, 1)


@pytest.mark.parametrize("again", [6, 8], ids=["before the spike", "after it"])
def test_rolled_back_evaluations_are_not_ranked(tmp_path, ranked, again):
    ranking = TopK(ranked, tmp_path)
    assert taken(ranking, {3: 3.0, 7: 1.0}) == [3, 7]
    ranked.state.spikes.skipped_steps.append((7, 14))  # the checkpoint of step 7 is deleted
    assert taken(ranking, {again: 5.0, 9: 4.0}) == [again, 9]


def test_rollback_undoes_only_the_evaluations_after_its_checkpoint(tmp_path, ranked):
    ranking, skipped = TopK(ranked, tmp_path), ranked.state.spikes.skipped_steps
    assert taken(ranking, {3: 3.0, 7: 1.0}) == [3, 7]
    skipped.append((7, 14))
    assert taken(ranking, {15: 2.0, 16: 5.0}) == [15]  # 3 and 15 are the best two
    skipped.append((15, 18))
    assert taken(ranking, {19: 4.0, 20: 5.0}) == [19]  # 3 and 19


@pytest.mark.parametrize(("val", "is_kept"), [(tiny.data(), True), (Rows(), False)])
def test_best_of_a_version_with_other_seeds_counts_only_for_tensors(val, is_kept):
    plan = SimpleNamespace(validation_metric="val/a", limit_val_batches=None)
    best = BestMetric(metric="val/a", best=0.5, best_step=3)
    state = SimpleNamespace(best=best)
    described = {"val": {"samples": 20, "some samples": "0123"}}
    assert measure_on(plan, state, described, tiny.task(val=val)) is not is_kept
    assert best.best == (0.5 if is_kept else None)
    assert not measure_on(plan, state, described, tiny.task(val=val))


def test_best_on_a_different_number_of_batches_is_forgotten():
    task, described = tiny.task(val=tiny.data()), {"val": {"samples": 20}}
    state = SimpleNamespace(best=BestMetric(metric="val/a", best=0.5, best_step=3))
    found = []
    for limit in (None, 2, 2, 3):
        plan = SimpleNamespace(validation_metric="val/a", limit_val_batches=limit)
        found.append(measure_on(plan, state, described, task))
    assert found == [False, True, False, True]


def counted(start, progress, per_epoch=None, delta=0.0):
    """Return the evaluations since the best one, after one that improves by 0.1."""
    plan = SimpleNamespace(
        validation_metric="val/a",
        validation_mode="min",
        early_stop_min_delta=delta,
        early_stop_start=None if start is None else parse_duration(start),
        steps_per_epoch=per_epoch,
        schedule=SimpleNamespace(name="constant"),
        optim_lr=0.1,
    )
    best = BestMetric(metric="val/a", best=1.0, best_step=1, since_best=2)
    state = SimpleNamespace(best=best, progress=Progress(**progress), plateau=None, plateaus={})
    assert list(update_best(plan, state, {"val/a": 0.9}, 0.1)) == []
    return state.best.since_best


@pytest.mark.parametrize(
    ("start", "per_epoch", "progress", "since"),
    [
        (None, None, {}, 3),
        ("4 steps", None, {"step": 4}, 2),
        ("4 steps", None, {"step": 5}, 3),
        ("2 epochs", 3, {"step": 6, "epoch": 2}, 2),
        ("2 epochs", 3, {"step": 7, "epoch": 2, "position": 8}, 3),
        ("2 epochs", None, {"step": 9, "epoch": 2}, 2),
        ("2 epochs", None, {"step": 9, "epoch": 2, "position": 8}, 3),
        ("2 epochs", None, {"step": 9, "epoch": 1, "position": 80}, 2),
    ],
)
def test_evaluation_counts_for_early_stopping_after_its_start(start, per_epoch, progress, since):
    assert counted(start, progress, per_epoch, delta=0.5) == since


@pytest.mark.parametrize(("delta", "since"), [(0.0, 0), (0.05, 0), (0.2, 3)])
def test_improvement_by_less_than_the_minimum_is_none(delta, since):
    assert counted(None, {"step": 5}, delta=delta) == since


def test_best_counts_while_the_monitored_set_is_the_same():
    plan = SimpleNamespace(validation_metric="near/a", limit_val_batches=None)
    state, task = tiny.state_of(), tiny.task(val={"near": tiny.data(), "far": tiny.data()})
    state.best = BestMetric(metric="near/a", best=0.5, best_step=3)
    sets = {name: {"samples": 20, "some samples": "0123"} for name in ("near", "far")}
    restarted = []
    for change in ({}, {"far": {"samples": 9}}, {"near": {"samples": 9}}, {"val": {}}):
        sets |= change
        restarted.append(measure_on(plan, state, sets, task))
    plan.limit_val_batches = 2
    restarted.append(measure_on(plan, state, sets, task))
    assert restarted == [False, False, True, False, True]
    assert not measure_on(SimpleNamespace(validation_metric=None), state, sets, task)


@pytest.mark.parametrize(("value", "best"), [(2.0, 2.0), (math.nan, None)])
def test_only_what_this_step_measured_counts_for_another_metric(value, best):
    plan = SimpleNamespace(validation_metric="val/b", validation_mode="min")
    state = tiny.state_of(steps=3)
    state.best = BestMetric("val/a", best=0.5, best_step=1, since_best=2, latest_step=3)
    state.best.latest = {"val/a": 0.6, "val/b": value}
    reset_best(plan, state)
    assert (state.best.best, state.best.since_best) == (best, 0)
    state.best.latest_step = 2
    reset_best(plan, state)
    assert (state.best.best, state.best.best_step) == (None, None)


class WorseMetric(surestep.Callback):
    """Changes the metrics that it is given."""

    def on_evaluate(self, state, metrics):
        metrics["val/loss"] += 1


def test_callback_that_changes_its_metrics_does_not_change_those_of_the_run(tmp_path):
    found = []
    for name, callbacks in {"plain": [], "changing": [WorseMetric()]}.items():
        task, config = tiny.task(val=tiny.data(8, seed=1)), tiny.config(epochs=2)
        run = surestep.Trainer(task, config, run=tmp_path / name, callbacks=callbacks).fit()
        found.append(run.best)
    assert found[0].step == found[1].step
    assert found[0].metrics == found[1].metrics
