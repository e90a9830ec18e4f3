"""Law 2: a run with a rollback depends only on its position, not on logging, saving or kills.

Five batches have inputs a thousand times too large, which makes the loss jump at step 71. The run
rolls back and excludes the steps 70 to 77.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import surestep
from surestep.engine.state.state import State
from surestep.engine.step.train_step import StepResult
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from tests.laws.support.plain import order_of
from tests.laws.support.spike_task import (
    BATCH,
    CORRUPTED,
    DECAY,
    EXCLUDED,
    LR,
    SAMPLES,
    STEPS,
    loss_on_clean_data,
    plain_run,
    task_of,
)
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot

Folder = Callable[[], Path]
OPTIONS: dict[str, Any] = {
    "epochs": 1,
    "batch_size": BATCH,
    "optim": {"lr": LR, "weight_decay": DECAY},
    "on_spike": "rollback",
    "checkpoint": {"every": "20 steps"},
    "logging": {"every": "25 steps"},
}


def fitted(
    run: Path, corrupted: range = CORRUPTED, *, dropout: float = 0.0, **more: Any
) -> Session:
    """Train to the end; return the closed session."""
    with session_of(task_of(corrupted, dropout=dropout), run, **OPTIONS | more) as session:
        fit(session)
    return session


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Return a run that rolls back."""
    return fitted(tmp_path_factory.mktemp("usual") / "run")


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Return a run with dropout that rolls back."""
    return fitted(tmp_path_factory.mktemp("drawing") / "run", dropout=0.2)


def events_of(session: Session, kind: str) -> list[dict[str, Any]]:
    return [event for event in session.run.events() if event["event"] == kind]


def check_rollback(folder: Folder, usual: Session | None = None) -> None:
    """Compare with a plain loop that never saw the excluded steps."""
    session = usual or fitted(folder())
    model = plain_run(EXCLUDED)
    weights = session.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_run_with_a_rollback_equals_a_plain_loop_without_the_excluded_steps(folder, usual):
    check_rollback(folder, usual)


def test_rollback_ends_with_a_lower_loss(folder, usual):
    through = fitted(folder(), on_spike="warn")
    assert loss_on_clean_data(usual.model) < 0.9 * loss_on_clean_data(through.model)
    assert events_of(through, "spike")
    assert not events_of(through, "rollback")


def test_events_report_the_spike_the_rollback_and_the_excluded_steps(usual):
    session = usual
    (spike,), (back,) = events_of(session, "spike"), events_of(session, "rollback")
    assert (spike["step"], spike["epoch"]) == (71, 0)
    assert spike["positions"] == [
        69 * BATCH,
        75 * BATCH,
    ]  # from the step before the spike to the last
    order = order_of(SAMPLES, 0, 0)
    assert spike["samples"] == order[69 * BATCH : 75 * BATCH].tolist()
    assert spike["loss"] > 100 > 10 < spike["z"]
    assert (back["step"], back["skipped_steps"], back["rollback"]) == (60, [70, 77], 1)
    skipped = session.run.skipped
    assert [step["step"] for step in skipped.steps] == list(EXCLUDED)
    assert {step["reason"] for step in skipped.steps} == {"spike"}
    assert skipped.steps[0]["positions"] == [69 * BATCH, 70 * BATCH]
    counts = session.state.counts
    assert (counts.after_spike, counts.no_items, counts.skipped) == (8, 0, 8)
    assert session.state.progress.step == STEPS
    assert session.state.progress.steps_taken == STEPS - 8


@pytest.mark.parametrize(
    "more",
    [
        {"logging": {"every": "1 step"}},
        {"logging": {"every": "160 items"}},
        {"logging": {"every": "1 epoch"}, "checkpoint": {"every": "1 epoch"}},
        {
            "checkpoint": {"every": "70 steps"}
        },  # the newest checkpoint has seen the first excluded batch
        {"checkpoint": {"every": "71 steps"}},
        {"validation": {"every": "7 steps"}},
        {"validation": {"every": "80 items"}, "checkpoint": {"every": "320 items"}},
    ],
    ids=str,
)
def test_rollback_does_not_depend_on_logging_evaluating_or_saving(folder, drawing, more):
    assert_same(snapshot(drawing), snapshot(fitted(folder(), dropout=0.2, **more)))


def check_resumed(folder: Folder, saved_at: int = 74, drawing: Session | None = None) -> None:
    """Save at a step before or after the rollback, and resume from there."""
    whole, run = drawing or fitted(folder(), dropout=0.2), folder()
    with session_of(task_of(dropout=0.2), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step == saved_at:
                session.save()
                if saved_at == session.state.progress.step:
                    break
    assert_moved(snapshot(whole), snapshot(session))
    with session_of(task_of(dropout=0.2), run, **OPTIONS) as again:
        fit(again)
    assert_same(snapshot(whole), snapshot(again))
    assert whole.state.spikes == again.state.spikes
    assert whole.state.counts == again.state.counts


@pytest.mark.parametrize("saved_at", [40, 69, 70, 74, 90])
def test_resumed_run_rolls_back_as_an_uninterrupted_run(folder, drawing, saved_at):
    check_resumed(folder, saved_at, drawing)


def test_run_that_dies_after_its_rollback_rolls_back_again(folder, drawing):
    whole, run = drawing, folder()
    with session_of(task_of(dropout=0.2), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 40:
                session.save()
            if result.step == 85 and events_of(session, "rollback"):
                break  # no checkpoint holds the excluded steps yet
    with session_of(task_of(dropout=0.2), run, **OPTIONS) as again:
        fit(again)
    assert len(events_of(again, "rollback")) == 2
    assert_same(snapshot(whole), snapshot(again))
    assert whole.run.skipped == again.run.skipped


def test_evaluations_after_the_checkpoint_are_undone(folder):
    """The best metric then comes from evaluations of the steps that were kept."""
    often = {"validation": {"every": "10 steps"}, "logging": {"every": "10 steps"}}
    late = {"validation": {"every": "10 steps"}, "logging": {"every": "1 step"}}
    one, other = fitted(folder(), **often), fitted(folder(), **late)
    assert one.state.best == other.state.best
    assert one.run.best.metrics == other.run.best.metrics


class Scores:
    """A metric with a given value for each step, independent of the weights."""

    def __init__(self, values: dict[int, float]) -> None:
        self.values, self.step = values, 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return self.values.get(self.step, 0.0)


class RecordScores(surestep.Callback):
    """Passes the step to a metric."""

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def on_step(self, state: State, result: StepResult) -> None:
        self.scores.step = result.step

    def on_evaluate(self, state: State, metrics: Mapping[str, Any]) -> None:
        self.scores.values.pop(state.progress.step, None)


def test_best_checkpoint_from_before_the_rollback_is_preserved(folder):
    """A better checkpoint right before the spike replaced it, and is deleted by the rollback."""
    scores = Scores({10: 0.7, 70: 0.9, 80: 0.5})
    task = replace(task_of(), metrics={"score": scores})
    often = {"validation": {"every": "10 steps", "metric": "score", "mode": "max"}}
    with session_of(task, folder(), callbacks=[RecordScores(scores)], **OPTIONS | often) as session:
        fit(session)
    assert len(events_of(session, "rollback")) == 1
    assert session.state.best.best_step == 10
    assert session.run.best.step == 10
    assert len(session.run.verify()) == 3  # the last two and the best


def test_evaluation_after_so_many_items_is_repeated_after_a_rollback(folder):
    """One of the step after the checkpoint: the period ends there again."""
    own = {"checkpoint": {"every": "20 steps", "keep_best": 0}}
    session = fitted(folder(), validation={"every": f"{61 * BATCH} items"}, **own)
    assert [event["step"] for event in events_of(session, "rollback")] == [60]
    steps = [event["step"] for event in events_of(session, "evaluation")]
    assert steps[:2] == [61, 61]


def test_checkpoint_of_the_step_before_the_spike_is_deleted(folder):
    """Its update may have caused the spike, and is undone."""

    class SaveBefore(surestep.Callback):
        left = True

        def on_step(self, state, result):
            if result.step == EXCLUDED.start and self.left:
                self.left = False
                return surestep.Request.SAVE
            return None

    keep = {"checkpoint": {"every": "20 steps", "keep_last": 99}}
    callbacks = [SaveBefore()]
    with session_of(task_of(), folder(), callbacks=callbacks, **OPTIONS | keep) as session:
        fit(session)
        steps = [event["step"] for event in events_of(session, "checkpoint")]
        assert EXCLUDED.start in steps
        kept = [step_of(path) for path in list_checkpoints(session.run.checkpoints)]
    assert kept == [*range(0, STEPS + 1, 20)]


def test_second_spike_excludes_twice_as_much_and_the_last_is_only_reported(folder):
    session = fitted(folder(), range(71, 119), max_rollbacks=2)
    stretches = [event["skipped_steps"] for event in events_of(session, "rollback")]
    assert stretches == [[70, 77], [77, 92]]
    assert session.state.spikes.rollbacks == 2
    assert [event["step"] for event in events_of(session, "spike")] == [71, 78, 93]
    assert session.state.progress.step == STEPS


def test_spike_that_ends_in_nan_is_rolled_back(folder):
    """A spike may be followed by NaN at once; the rollback comes before the NaN fails the run."""
    task = task_of()
    x = task.train[0]
    x[order_of(len(x), 0, 0)[73 * BATCH]] = torch.nan  # step 74, which is excluded too
    with session_of(task, folder(), **OPTIONS) as session:
        fit(session)
    model = plain_run(EXCLUDED)
    assert torch.equal(session.model[1].weight, model[1].weight)


def test_stop_requested_in_the_undone_steps_is_undone(folder):
    class StopAtHighLoss(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.STOP if float(result.loss) > 100 else None

    task, run = task_of(), folder()
    with session_of(task, run, callbacks=[StopAtHighLoss()], **OPTIONS) as session:
        fit(session)
    assert session.state.progress.step == STEPS


@pytest.mark.parametrize("requested", [surestep.Request.SAVE, surestep.Request.EVALUATE])
def test_save_or_evaluation_requested_in_an_undone_step_is_undone(folder, usual, requested):
    class RequestAtHighLoss(surestep.Callback):
        def on_step(self, state, result):
            return requested if float(result.loss) > 100 else None

    def steps_of(session):
        kinds = ("checkpoint", "evaluation")
        return [[event["step"] for event in events_of(session, kind)] for kind in kinds]

    with session_of(task_of(), folder(), callbacks=[RequestAtHighLoss()], **OPTIONS) as session:
        fit(session)
    assert len(events_of(session, "rollback")) == 1
    assert steps_of(session) == steps_of(usual)


def test_evaluation_and_save_that_end_with_the_undone_step_are_not_made(folder):
    """The request reads the loss within the step, which is undone before these are due."""

    class SaveAtHighLoss(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.SAVE if float(result.loss) > 100 else None

    own = {"validation": {"every": "71 steps"}, "checkpoint": {"every": "71 steps"}}
    options, callbacks = OPTIONS | own, [SaveAtHighLoss()]
    with session_of(task_of(), folder(), callbacks=callbacks, **options) as session:
        fit(session)
    assert [event["step"] for event in events_of(session, "rollback")] == [0]
    assert [event["step"] for event in events_of(session, "evaluation")] == [71, STEPS]
    assert [event["step"] for event in events_of(session, "checkpoint")] == [0, 71, STEPS]


def test_spike_without_an_earlier_checkpoint_is_reported_and_training_continues(folder):
    with session_of(task_of(), folder(), **OPTIONS) as session:
        steps = session.steps()
        next(steps)
        session.saving.collect(wait=True)
        shutil.rmtree(session.run.checkpoints)
        list(steps)
    assert not events_of(session, "rollback")
    assert len(events_of(session, "spike")) >= 1
    assert session.state.progress.steps_taken == STEPS


def test_stream_is_read_again_and_the_samples_excluded(folder):
    task = task_of()
    x, y = (tensor[order_of(SAMPLES, 0, 0)] for tensor in task.train)
    stream = replace(task, train=lambda: zip(x, y, strict=True), val=None)
    options = {name: value for name, value in OPTIONS.items() if name != "epochs"}
    with session_of(stream, folder(), max_steps=STEPS, **options) as session:
        fit(session)
    (spike,) = events_of(session, "spike")
    assert (spike["positions"], spike["samples"]) == ([69 * BATCH, 75 * BATCH], None)
    assert len(events_of(session, "rollback")) == 1
    weights, model = session.model.state_dict(), plain_run(EXCLUDED)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("every", ["1 step", "20 steps"])
def test_suspect_samples_of_a_spike_belong_to_its_epoch(folder, every):
    """The reported positions lie between the first and the last sample."""
    options = {"epochs": 2, "on_spike": "warn", "logging": {"every": every}}
    session = fitted(folder(), range(STEPS, STEPS + 1), **options)
    spike = events_of(session, "spike")[0]
    assert (spike["epoch"], spike["positions"]) == (0, [SAMPLES - 2 * BATCH, SAMPLES])
    assert spike["samples"] == order_of(SAMPLES, 0, 0)[-2 * BATCH :].tolist()


def test_custom_batches_cannot_be_excluded(folder):
    rejection = pytest.raises(surestep.SurestepError, match="on_spike='warn'")
    with session_of(task_of(), folder(), **OPTIONS) as session, rejection:
        session.train_step([session.task.train])


def test_corrupt_checkpoint_is_skipped_and_reported(folder, capsys):
    run = folder()
    logging = {"every": "25 steps", "progress": "plain"}
    with session_of(task_of(), run, **OPTIONS | {"logging": logging}) as session:
        for result in session.steps():
            if result.step in (40, 60):
                path = session.save()
            if result.step == 60:
                file = next(path.glob("*.safetensors"))
                file.write_bytes(file.read_bytes()[:-4] + b"\0\1\2\3")
    (back,) = events_of(session, "rollback")
    assert back["step"] == 40
    output = capsys.readouterr().err
    assert "step-00000060" in output
    assert "the median of the last 70 losses" in output
