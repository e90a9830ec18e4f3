"""The result of a search reaches its trackers; trials with missing events are named."""

import pytest

import surestep
from surestep.record.io import write_json
from surestep.tracking.study import describe_missing, finish_study
from surestep.tracking.tracker import StudyResult


class Recorder(surestep.Tracker):
    name = "recorder"
    study = None

    def end_study(self, study):
        self.study = study


class Broken(surestep.Tracker):
    name = "broken"

    def end_study(self, study):
        raise ConnectionError("the server is away\nmore text")


def test_result_of_a_study_reaches_each_tracker_despite_a_failure(tmp_path):
    recorder = Recorder()
    study = StudyResult("digits-7", tmp_path, {"lr": 0.1}, {"val/loss": 0.5})
    messages = finish_study([Broken(), recorder], study)
    assert recorder.study is study
    assert messages == [
        "broken did not take the result of the study digits-7: ConnectionError: the server is away."
    ]


EVENTS = "\n".join(
    ['{"event": "notice"}', '{"event": "checkpoint", "step": 3}', '{"event": "notice"}', ""]
)
HALF = EVENTS.index("\n") + 1  # bytes before the event that trackers get
ALL = EVENTS.index("\n", HALF) + 1  # what follows is a notice


def make_run(folder, *, delivered, trackers=("mlflow",), events=EVENTS):
    """Write what a run leaves, with the offset of each tracker."""
    folder.mkdir(parents=True)
    write_json(folder / "plan.json", [{"option": "logging.trackers", "value": list(trackers)}])
    (folder / "events.jsonl").write_text(events)
    for name, offset in delivered.items():
        (folder / "trackers").mkdir(exist_ok=True)
        write_json(folder / "trackers" / f"{name}.json", {"offset": offset, "state": {}})
    return folder


def test_trials_with_missing_events_are_named_with_the_command_that_sends_them(tmp_path):
    whole = make_run(tmp_path / "0000", delivered={"mlflow": ALL})
    part = make_run(tmp_path / "0001", delivered={"mlflow": HALF})
    none = make_run(tmp_path / "0002", delivered={})
    untracked = make_run(tmp_path / "0003", delivered={}, trackers=())
    (failed := tmp_path / "0004").mkdir()  # before it had a Plan
    own = make_run(tmp_path / "0005", delivered={"recorder": 0}, trackers=())
    command = f"To send them: surestep track replay {tmp_path} --to"
    assert describe_missing([whole, part, none, untracked, failed, own], tmp_path) == [
        f"mlflow is missing events of 2 trials: 0001, 0002. {command} mlflow",
        f"recorder is missing events of 1 trial: 0005. {command} recorder",
    ]
    assert describe_missing([whole, untracked], tmp_path) == []


def test_each_tracker_has_its_own_message_and_ten_trials_are_named(tmp_path):
    both = {"mlflow": ALL, "wandb": 0}
    runs = [
        make_run(tmp_path / f"{number:04d}", delivered=both, trackers=("mlflow", "wandb"))
        for number in range(12)
    ]
    (message,) = describe_missing(runs, tmp_path)
    assert message.startswith("wandb is missing events of 12 trials: 0000, ")
    assert "0009 and 2 more. To send" in message


@pytest.mark.parametrize("text", ["", '{"offset": "many"}'])
def test_record_that_cannot_be_read_counts_as_missing_events(tmp_path, text):
    run = make_run(tmp_path / "run", delivered={"mlflow": ALL})
    (run / "trackers" / "mlflow.json").write_text(text)
    assert len(describe_missing([run], tmp_path)) == 1
