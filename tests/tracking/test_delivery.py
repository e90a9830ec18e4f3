"""Trackers get every event of a run, whatever happens to them, and never delay it."""

import json
import math
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import RunError
from surestep.tracking import follower
from surestep.tracking.follower import Delivery
from surestep.trainer.planning import TaskOrigin

STEPS = 12


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look at the events often, and do not wait long for a tracker that fails."""
    monkeypatch.setattr(follower, "INTERVAL_S", 0.01)
    monkeypatch.setattr(follower, "LONGEST_PAUSE_S", 0.02)


class Recorder(surestep.Tracker):
    """Records its calls. It fails at the first calls of a method, if asked."""

    name = "recorder"

    def __init__(self, **failures):
        self.calls, self.failures = [], failures

    def __getattribute__(self, name):
        if name in ("start", "log", "resume", "checkpoint", "findings", "end", "close"):
            return lambda *given: self._call(name, given)
        return super().__getattribute__(name)

    def _call(self, name, given):
        if self.failures.get(name, 0):
            self.failures[name] -= 1
            raise ConnectionError("the server is away\nmore text")
        self.calls.append((name, given))
        return {"id": 7} if name == "start" else None

    def of(self, name):
        return [given for called, given in self.calls if called == name]

    def points(self):
        return [point for (points,) in self.of("log") for point in points]


def make_data():
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


DATA = make_data()


def options(**options):
    usual = {
        "max_steps": STEPS,
        "batch_size": 8,
        "optim.groups": ["*bias lr=0.5x"],
        "validation.every": "6 steps",
        "logging.every": "2 steps",
        "logging.progress": "plain",
    }
    return surestep.Config.from_options(usual | options)


def train(folder, *trackers, model=None, from_=None, origin=None, callbacks=(), **given):
    torch.manual_seed(0)
    task = surestep.Task(model or nn.Linear(3, 1), "mse", DATA, val=DATA)
    given = {"config": options(**given), "trackers": trackers, "callbacks": callbacks}
    return surestep.Trainer(task, run=folder, from_=from_, origin=origin, **given).fit()


def expected_points(run):
    """Return step and loss of every log point and every evaluation on the validation data."""
    found = []
    for event in run.events():
        if event["event"] == "steps":
            last = event["first"] + len(event["loss"]) - 1
            found.append((last, "train/loss", sum(event["loss"]) / len(event["loss"])))
        if event["event"] == "evaluation" and "val/loss" in event["metrics"]:
            found.append((event["step"], "val/loss", event["metrics"]["val/loss"]))
    return found


def losses(tracker):
    return [
        (point.step, name, point.values[name])
        for point in tracker.points()
        for name in ("train/loss", "val/loss")
        if name in point.values
    ]


def test_tracker_gets_every_point_in_order(tmp_path):
    recorder = Recorder()
    run = train(tmp_path, recorder)
    assert losses(recorder) == expected_points(run)
    names = [name for name, _ in recorder.calls]
    assert (names[0], names[-3:]) == ("start", ["findings", "end", "close"])
    ((status, summary),) = recorder.of("end")
    assert (status, summary["step"]) == ("finished", STEPS)
    path, step, metrics = recorder.of("checkpoint")[-1]
    assert (path.name, step) == ("step-00000012", STEPS)
    assert metrics == run.last.metrics
    first = recorder.points()[0].values
    assert first.keys() >= {"lr", "grad_norm", "epoch", "throughput/items_per_s", "memory/peak"}
    assert first["lr/*bias, no decay"] == first["lr"] / 2
    ((started,),) = recorder.of("start")
    assert started.options["optim.name"] == "adamw"
    assert (started.name, started.state) == (tmp_path.name, {})


def test_tracker_gets_points_and_checkpoints_in_the_order_of_the_events(tmp_path):
    train(tmp_path, max_steps=6)
    run = train(tmp_path)
    recorder = Recorder()
    Delivery(tmp_path, recorder).deliver()
    expected, found = [], []
    for event in run.events():
        if event["event"] in ("checkpoint", "resume"):
            expected.append((event["event"], event["step"]))
        elif event["event"] == "steps":
            expected.append(("steps", event["first"] + len(event["loss"]) - 1))
        elif event["event"] == "evaluation":
            expected.append(("evaluation", event["step"]))
    for name, given in recorder.calls:
        if name in ("checkpoint", "resume"):
            found.append((name, given[1]))
        for point in given[0] if name == "log" else ():
            kind = "steps" if "train/loss" in point.values else "evaluation"
            found.append((kind, point.step))
    assert found == expected
    assert [name for name, _ in found].count("checkpoint") >= 2
    assert ("resume", 6) in found


def test_checkpoint_that_is_written_after_the_next_evaluation_has_its_own_metrics(tmp_path):
    run = train(tmp_path, **{"checkpoint.every": "6 steps", "checkpoint.keep_last": 2})
    expected = {e["step"]: e["metrics"] for e in run.events() if e["event"] == "evaluation"}
    assert list(expected) == [6, 12]
    places, path = {"checkpoint": 1, "end": 2}, tmp_path / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines.sort(key=lambda line: places.get(json.loads(line)["event"], 0))
    path.write_text("".join(lines))
    recorder = Recorder()
    Delivery(tmp_path, recorder, from_start=True).deliver()
    assert {step: metrics for _, step, metrics in recorder.of("checkpoint")} == expected


def test_checkpoint_that_a_later_process_delivers_has_its_metrics(tmp_path):
    """The process before had delivered its evaluation."""
    run, path = train(tmp_path, max_steps=6), tmp_path / "events.jsonl"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    evaluated = [json.loads(line)["event"] for line in lines].index("evaluation")
    path.write_text("".join(lines[: evaluated + 1]))
    Delivery(tmp_path, Recorder()).deliver()
    path.write_text(text)
    recorder = Recorder()
    Delivery(tmp_path, recorder).deliver()
    assert recorder.of("checkpoint")[-1][2] == run.last.metrics


def test_checkpoint_has_the_metrics_of_the_run_that_a_rollback_left(tmp_path):
    train(tmp_path, max_steps=6)
    path = tmp_path / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {event["event"]: event for event in lines}

    def event(name, step, **fields):
        return {**found.get(name, {"time": 0.0, "event": name}), "step": step, **fields}

    def evaluated(step, loss, **fields):
        return event("evaluation", step, metrics={"val/loss": loss}, **fields)

    made = [
        lines[0],
        *(evaluated(3, 0.3), evaluated(6, 0.6), evaluated(6, 9.0, which="best")),
        *(event("checkpoint", 6), evaluated(9, 0.9), event("resume", 6)),
        *(event("checkpoint", 6), event("checkpoint", 9), evaluated(12, 1.2)),
        event("checkpoint", 12),
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in made))
    recorder = Recorder()
    Delivery(tmp_path, recorder, from_start=True).deliver()
    assert [(step, metrics) for _, step, metrics in recorder.of("checkpoint")] == [
        *((6, {"val/loss": 0.6}), (6, {"val/loss": 0.6}), (9, {}), (12, {"val/loss": 1.2}))
    ]
    record = json.loads((tmp_path / "trackers" / "recorder.json").read_text())
    assert [entry["step"] for entry in record["evaluated"]] == [12]  # those before are not needed


def test_tracker_that_works_again_has_not_stalled():
    tracker, failed = Recorder(), []

    def deliver():
        delivery.pending = not failed
        if not failed:
            failed.append(True)
            raise ConnectionError("the server is away")

    delivery = SimpleNamespace(tracker=tracker, pending=True, deliver=deliver, call=None)
    delivery.close, delivery.moved, delivery.is_hanging = list, -math.inf, lambda: False
    following = follower.Follower(delivery)
    following.start()
    while delivery.pending:
        following.wait(0.01)
    following.finish()
    assert following.wait(5)
    following._ended = -math.inf  # long ago
    assert not following.has_stalled()


@pytest.mark.parametrize("method", ["start", "log", "checkpoint", "findings", "end"])
def test_tracker_that_fails_for_a_while_misses_nothing(tmp_path, method, capfd):
    recorder = Recorder(**{method: 3})
    run = train(tmp_path, recorder)
    assert set(losses(recorder)) == set(expected_points(run))
    assert len(recorder.of("end")) == 1
    assert recorder.of("start")[-1][0].state == ({} if method == "start" else {"id": 7})
    printed = capfd.readouterr().err
    assert printed.count("ConnectionError: the server is away.") <= 1


def test_tracker_that_always_fails_does_not_harm_the_run(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(follower, "STALLED_S", 0.2)
    plain = train(tmp_path / "plain")
    tracked = train(tmp_path / "tracked", Recorder(start=10**9))
    model = [nn.Linear(3, 1), nn.Linear(3, 1)]
    for run, one in zip((plain, tracked), model, strict=True):
        run.load_model(one, which="last")
    assert torch.equal(model[0].weight, model[1].weight)
    printed = capfd.readouterr().err
    assert f"replay_run('{tmp_path / 'tracked'}', tracker)" in printed


def test_what_was_missed_is_delivered_later(tmp_path, monkeypatch):
    monkeypatch.setattr(follower, "STALLED_S", 0.2)
    run = train(tmp_path, Recorder(log=10**9))
    late = Recorder()
    Delivery(tmp_path, late).deliver()
    assert losses(late) == expected_points(run)
    everything = Recorder()
    Delivery(tmp_path, everything, from_start=True).deliver()
    assert losses(everything) == expected_points(run)


def test_tracker_that_a_killed_process_left_open_is_started_again(tmp_path):
    train(tmp_path)
    Delivery(tmp_path, Recorder()).deliver()
    size = (tmp_path / "events.jsonl").stat().st_size
    for calls in (["start", "close"], []):
        recorder = Recorder()
        delivery = Delivery(tmp_path, recorder)
        delivery.deliver()
        delivery.close()
        assert [name for name, _ in recorder.calls] == calls
        assert [run.delivered for (run,) in recorder.of("start")] == [size] * len(calls[:1])


def test_resumed_run_continues_with_the_state_of_the_tracker(tmp_path):
    train(tmp_path, Recorder(), max_steps=6)
    recorder = Recorder()
    run = surestep.Run(tmp_path)
    before = len(expected_points(run))
    train(tmp_path, recorder)
    ((started,),) = recorder.of("start")
    assert started.state == {"id": 7}
    assert losses(recorder) == expected_points(run)[before:]


def test_state_of_a_tracker_that_returns_none_when_it_continues_is_kept(tmp_path):
    class Silent(Recorder):
        def _call(self, name, given):
            answer = super()._call(name, given)
            return None if name == "start" and given[0].state else answer

    train(tmp_path, Silent(), max_steps=4)
    for steps in (8, 12):
        recorder = Silent()
        train(tmp_path, recorder, max_steps=steps)
        ((started,),) = recorder.of("start")
        assert started.state == {"id": 7}


def test_tracker_gets_the_checkpoint_that_a_run_continues_from(tmp_path):
    first, branch = tmp_path / "first", tmp_path / "branch"
    train(first, max_steps=6)
    recorder = Recorder()
    run = train(first, recorder)
    assert recorder.of("resume") == [(run.checkpoints / "step-00000006", 6)]
    recorder = Recorder()
    train(branch, recorder, from_=f"{first}@12", max_steps=18)
    assert recorder.of("resume") == [(run.checkpoints / "step-00000012", 12)]


def test_tracker_gets_the_findings_of_each_end(tmp_path):
    recorder = Recorder()
    run = train(tmp_path, recorder, **{"max_steps": 40, "max_grad_norm": 1e-4})
    ((findings,),) = recorder.of("findings")
    assert "SS117" in [finding["rule"] for finding in findings]
    assert findings == run.status["findings"]


def test_trial_of_a_search_has_the_name_of_its_study(tmp_path):
    recorder = Recorder()
    run = train(tmp_path, recorder, origin=TaskOrigin(study="digits-7"))
    ((started,),) = recorder.of("start")
    assert started.study == run.config["study"] == "digits-7"
    assert "study" not in train(tmp_path / "alone").config


def test_slow_tracker_does_not_delay_the_steps(tmp_path):
    released, answers = threading.Event(), []

    class Slow(surestep.Tracker):
        name = "slow"

        def log(self, points):
            answers.append(released.wait(300))  # the time ends a run that waits for it

    try:
        train(tmp_path, Slow(), **{"logging.tracker_wait": "0.1 seconds"})
        assert answers == []
    finally:
        released.set()


def test_damaged_record_of_a_delivery_is_named(tmp_path):
    train(tmp_path, Recorder())
    (tmp_path / "trackers" / "recorder.json").write_text('{"offset": "many"}')
    with pytest.raises(RunError, match=r"recorder\.json"):
        Delivery(tmp_path, Recorder())


def test_record_beyond_the_events_is_an_error(tmp_path):
    train(tmp_path, Recorder())
    record = tmp_path / "trackers" / "recorder.json"
    record.write_text(json.dumps({"offset": 10**9, "state": {}}))
    with pytest.raises(RunError, match="less than"):
        Delivery(tmp_path, Recorder()).deliver()


def test_error_of_a_tracker_is_recorded_without_the_password_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "s3cret-value")
    delivery = Delivery(tmp_path, Recorder())
    error = ConnectionError("http://me:pass@host refused s3cret-value")
    message = follower.Follower(delivery)._describe(error)
    assert "http://***@host refused ***." in message
