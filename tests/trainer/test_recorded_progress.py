"""A checkpoint of a run fits the events of the run, whatever they have lost."""

import json
import shutil

import pytest

import surestep
from surestep.base.errors import CorruptCheckpointError
from surestep.record.checkpoint.reader import check_record, read_record
from surestep.record.events import recorded_progress
from tests import tiny
from tests.record.checkpoint.forge import forge_record
from tests.trainer.test_fallback import SAID, fit, parts

OPTIONS = {**SAID, "max_steps": 10}


@pytest.fixture
def run(tmp_path):
    """Steps 5 and 6 are taken twice: the second time with another batch size."""
    run = fit(tmp_path / "run")
    shutil.rmtree(run.checkpoints / "step-00000006")
    task, config = tiny.task(**parts()), tiny.config(**{**OPTIONS, "batch_size": 4})
    with surestep.prepare(task, config, run=run.path, allow=["batch_size"]) as session:
        for result in session.steps():
            if result.step == 6:
                session.save()
                break
    return run


def check(run, step=6):
    path = run.folder_of(step)
    check_record(path, read_record(path))


def edit(run, change):
    """Change the lines of the events by a function of their content."""
    path = run.path / "events.jsonl"
    lines = [change(json.loads(line), line) for line in path.read_text().splitlines(keepends=True)]
    path.write_text("".join(lines))


def ends_at_6(event):
    return event.get("progress", {}).get("step") == 6


def items_at_6(run):
    return [found["items"] for found in recorded_progress(run.path / "events.jsonl", 6)]


def test_step_that_was_taken_again_has_the_progress_of_either_time(run):
    assert items_at_6(run) == [40.0, 36.0]
    check(run)
    forge_record(run.folder_of(6), progress__items=40.0)
    with pytest.raises(CorruptCheckpointError, match=r"progress\.items is 40\.0, and events"):
        check(run)
    forge_record(run.folder_of(6), progress__epoch=2, progress__position=0)
    check(run)  # as if a copy of the older checkpoint had been put back


@pytest.mark.parametrize("is_blank", [False, True], ids=["lost", "set aside as damaged"])
def test_events_that_lost_the_last_time_a_step_was_taken_are_not_compared(run, is_blank):
    last = [line for event, line in lines_of(run) if ends_at_6(event)][-1]
    edit(run, lambda event, line: ("\n" if is_blank else "") if line == last else line)
    check(run)
    assert items_at_6(run) == []


@pytest.mark.parametrize(("back", "is_compared"), [(5, False), (6, True), (7, True)])
def test_step_that_was_undone_by_going_back_is_not_compared(run, back, is_compared):
    with (run.path / "events.jsonl").open("a") as file:
        file.write(f'{{"event": "rollback", "time": 1.0, "step": {back}}}\n')
    assert items_at_6(run) == ([40.0, 36.0] if is_compared else [])


def lines_of(run):
    text = (run.path / "events.jsonl").read_text()
    return [(json.loads(line), line) for line in text.splitlines(keepends=True)]


@pytest.mark.parametrize(
    "change",
    [
        lambda event, line: "",
        lambda event, line: line if event["event"] != "steps" else "",
        lambda event, line: (
            json.dumps({name: event[name] for name in event.keys() - {"progress"}}) + "\n"
        ),
    ],
    ids=["emptied", "without steps", "of an older version"],
)
def test_events_without_the_progress_are_not_compared(run, change):
    edit(run, change)
    check(run)


def test_epoch_that_ended_after_its_last_step_was_recorded_is_accepted(run):
    """Data that became shorter ends an epoch when no batch is left, after the last step."""
    progress = read_record(run.folder_of(6))["progress"]
    assert progress["position"] > 0
    epoch = progress["epoch"] + 1
    forge_record(run.folder_of(6), progress__epoch=epoch, progress__position=0)
    check(run)
    forge_record(run.folder_of(6), progress__epoch=epoch, progress__position=1)
    with pytest.raises(CorruptCheckpointError, match="epoch is 2, and events"):
        check(run)


def test_branch_of_a_checkpoint_whose_progress_differs_from_the_events_is_rejected(run, tmp_path):
    forge_record(run.folder_of(6), progress__items=30.0)
    task, parent = tiny.task(**parts()), f"{run.path}@6"
    with pytest.raises(CorruptCheckpointError, match=r"progress\.items is 30\.0, and events"):
        surestep.prepare(task, tiny.config(**OPTIONS), run=tmp_path / "new", from_=parent)
