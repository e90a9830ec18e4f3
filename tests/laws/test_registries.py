"""Test splitting, skipping, resuming and rejection for every registered name.

An entry of surestep's tables that has none here fails `test_every_name_has_an_entry`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import surestep
from surestep.config.groups import Average
from surestep.config.optim import Optim
from surestep.engine.losses.registry import BUILT_IN as LOSSES
from surestep.engine.schedule.registry import BUILT_IN as SCHEDULES
from surestep.engine.step.train_step import StepResult
from surestep.trainer.session import Session
from tests.laws.support.plain import distance
from tests.laws.support.registry_entries import Entry, averages, losses, optimizers, schedules
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot

STEPS, BATCH, BAD_STEP, STOP = 12, 16, 6, 7
Folder = Callable[[], Path]
WHOLE: dict[str, Any] = {}


def names_in(literal: Any) -> set[str]:
    """Return the names that an option's annotation, `Literal[...] | None`, allows."""
    return {name for names in get_args(literal) for name in get_args(names)}


TABLES: dict[str, tuple[set[str], dict[str, Entry]]] = {
    "optimizer": (names_in(Optim.model_fields["name"].annotation), optimizers.ENTRIES),
    "average": (names_in(Average.model_fields["kind"].annotation) - {"none"}, averages.ENTRIES),
    "schedule": (set(SCHEDULES), schedules.ENTRIES),
    "loss": (set(LOSSES), losses.ENTRIES),
}
ENTRIES = [
    pytest.param(entry, id=f"{kind} {name}")
    for kind, (_, entries) in TABLES.items()
    for name, entry in entries.items()
]


class CorruptOutputs(surestep.Callback):
    """Make the outputs of the model NaN in chosen steps."""

    def __init__(self, model: torch.nn.Module, *steps: int) -> None:
        self.steps = steps
        self.factor = 1.0
        self.before: dict[str, Tensor] = {}
        model.register_forward_hook(lambda *call: self.spoil(call[-1]))

    def spoil(self, outputs: Any) -> Any:
        if isinstance(outputs, Tensor):
            return outputs * self.factor if outputs.is_floating_point() else outputs
        if isinstance(outputs, Mapping):
            return type(outputs)({key: self.spoil(output) for key, output in outputs.items()})
        return type(outputs)(self.spoil(output) for output in outputs)

    def on_batch(self, state: surestep.State, batch: Any) -> None:
        self.factor = float("nan") if state.progress.step + 1 in self.steps else 1.0

    def on_step(self, state: surestep.State, result: StepResult) -> None:
        self.factor = 1.0  # later evaluations are not corrupted


def opened(entry: Entry, folder: Path, *bad_steps: int, **options: Any) -> Session:
    task = surestep.Task(**entry.parts())
    corruption = CorruptOutputs(task.model, *bad_steps)
    settings = {"max_steps": STEPS, "batch_size": BATCH, **entry.options, **options}
    return session_of(task, folder, callbacks=[corruption], **settings)


def stepped(session: Session) -> Iterator[StepResult]:
    """Take all steps; if the Task has validation data, evaluate after each."""
    for result in session.steps():
        if session.task.val:
            session.evaluate()
        yield result


def trained(entry: Entry, folder: Path, *bad_steps: int, **options: Any) -> Session:
    with opened(entry, folder, *bad_steps, **options) as session:
        for _ in stepped(session):
            pass
    return session


def trained_whole(entry: Entry, folder: Folder) -> Session:
    """Return the session of a run in whole batches, which the checks of an entry share."""
    if entry is not WHOLE.get("entry"):
        session = trained(entry, folder(), micro_batch_size=BATCH)
        WHOLE.update(entry=entry, session=session, state=snapshot(session))
    assert_same(WHOLE["state"], snapshot(WHOLE["session"]))  # no check has changed it
    return WHOLE["session"]


def check_cut(entry: Entry, folder: Folder) -> None:
    """An uneven split gives the same update, or the Plan reports that it does not."""
    whole, cut = trained_whole(entry, folder), trained(entry, folder(), micro_batch_size=5)
    if entry.tolerance is None:
        assert "splitting changes the numbers here" in cut.plan.reason("batch_layout")
    else:
        assert distance(whole.model, cut.model) <= entry.tolerance


def check_skip(entry: Entry, folder: Folder) -> None:
    """A step whose outputs are NaN changes nothing, and the others are taken."""
    with opened(entry, folder(), BAD_STEP, on_nonfinite="skip") as session:
        start = before = snapshot(session)
        for result in stepped(session):
            now = snapshot(session)
            if result.step == BAD_STEP:
                assert_same(before, now)
            before = now
    assert session.state.progress.steps_taken == STEPS - 1
    assert session.state.counts.nonfinite == 1
    assert_moved(start, before)


def check_resume(entry: Entry, folder: Folder) -> None:
    """A run stopped within an epoch and resumed equals an uninterrupted run, bit for bit."""
    never, stopped = trained_whole(entry, folder), folder()
    with opened(entry, stopped, micro_batch_size=BATCH) as session:
        for result in stepped(session):
            if result.step == STOP:
                session.save()
                break
    gone_on = trained(entry, stopped, micro_batch_size=BATCH)
    assert gone_on.state.progress == never.state.progress
    assert gone_on.state.plateau == never.state.plateau
    assert_same(snapshot(never), snapshot(gone_on))


def check_wrong(entry: Entry, folder: Folder) -> None:
    """A wrong option or part is rejected with an explanation."""
    wrong = entry.wrong
    parts = {**entry.parts(), **wrong.parts()}
    settings = {**entry.options, **wrong.options}
    with pytest.raises(surestep.SurestepError, match=wrong.sentence):
        session_of(surestep.Task(**parts), folder(), max_steps=STEPS, batch_size=BATCH, **settings)


@pytest.mark.parametrize("check", [check_cut, check_skip, check_resume, check_wrong])
@pytest.mark.parametrize("entry", ENTRIES)
def test_every_name_of_every_registry(entry, check, folder):
    check(entry, folder)


@pytest.mark.parametrize("kind", TABLES)
def test_every_name_has_an_entry(kind):
    known, entries = TABLES[kind]
    assert known == set(entries)


@pytest.mark.parametrize("name", schedules.ENTRIES)
def test_learning_rate_of_every_schedule_changes(name, folder):
    """Otherwise skipping and saving it would prove nothing."""
    with opened(schedules.ENTRIES[name], folder()) as session:
        rates = {result.lr for result in stepped(session)}
    assert len(rates) > 1
