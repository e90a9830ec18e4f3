import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import NonFiniteError, Preempted, TaskError
from surestep.engine.distributed import communicator as world
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.reader import read_record
from surestep.record.run import Run
from surestep.trainer.fit import fit
from surestep.trainer.scheduled import count_evaluations
from tests import tiny
from tests.warm import warm_python

X, Y = tiny.data()


def scored(values, **parts):
    """A task whose metric has these values, one at each evaluation."""
    rest = iter([values[0], *values])  # the start-up checks consume the first
    return {
        "val": (X[:1], Y[:1]),
        "metrics": {"score": surestep.whole_set(lambda o, t: next(rest))},
        **parts,
    }


SCORE = {"metric": "score", "mode": "max"}


def test_fit_learns_and_leaves_the_last_weights_in_the_model(tmp_path):
    x, y = tiny.data(200)
    model = tiny.model()
    parts = {"model": model, "train": (x[:150], y[:150]), "val": (x[150:], y[150:])}
    run = tiny.fit(tmp_path, parts, epochs=15, optim={"lr": 0.03})
    losses = [event["metrics"]["val/loss"] for event in run.events() if "metrics" in event]
    assert losses[-1] < 0.3 * losses[0]
    last = tiny.model(seed=4)
    run.load_model(last, "last")
    assert torch.equal(tiny.weights(last), tiny.weights(model))


def test_evaluation_with_the_best_weights_restores_the_last(tmp_path):
    model = tiny.model()
    task = tiny.task(model=model, val=(X, Y), test=(X[:7], Y[:7]))
    config = tiny.config(epochs=4, optim={"lr": 0.05})
    trainer = surestep.Trainer(task, config, run=tmp_path)
    run = trainer.fit()
    last = tiny.weights(model)
    for which in ("best", "last"):
        other = tiny.model()
        run.load_model(other, which)
        expected = float(nn.CrossEntropyLoss()(other(X[:7]), Y[:7]).detach())
        assert trainer.evaluate("test", which)["test/loss"] == pytest.approx(expected, rel=1e-5)
    assert torch.equal(tiny.weights(model), last)


def test_run_without_validation_saves_its_last_step(tmp_path):
    run = tiny.fit(tmp_path, max_steps=5, checkpoint={"every": "1 epoch"})
    assert [path.name for path in list_checkpoints(run.checkpoints)] == [
        *("step-00000003", "step-00000005")
    ]
    assert run.status["reason"] == "all steps are done"


@pytest.mark.parametrize(
    ("values", "stop", "steps"),
    [
        ([0.5, 0.4, 0.3, 0.9, 0.9], {"patience": 2}, 9),
        ([0.5, 0.4, 0.6, 0.5, 0.4], {"patience": 3}, 15),
        ([0.5, 0.55, 0.6, 0.65, 0.7], {"patience": 2, "min_delta": 0.2}, 9),
        ([0.5, math.nan, math.nan, 0.9, 0.9], {"patience": 2}, 9),
        ([math.nan, math.nan, 0.9, 0.9, 0.9], {"patience": 2}, 6),
        ([0.1, 0.2, 0.3, 0.4, 0.5], {"patience": 1}, 15),
    ],
    ids=["falls", "recovers", "min_delta", "NaN", "only NaN", "rises"],
)
def test_early_stop_waits_for_its_patience(tmp_path, values, stop, steps):
    run = tiny.fit(tmp_path, scored(values), epochs=5, validation=SCORE, early_stop=stop)
    assert run.status["step"] == steps
    assert run.status["status"] == "finished"
    assert ("early stop: val/score" in run.status["reason"]) is (steps < 15)


@pytest.mark.parametrize("values", [[math.nan, math.inf], [-math.inf, -math.inf]])
def test_early_stop_without_a_finite_value_says_so(tmp_path, values):
    run = tiny.fit(tmp_path, scored(values), epochs=5, validation=SCORE, early_stop={"patience": 2})
    assert run.status["reason"] == "early stop: val/score was not finite in 2 evaluations"


def test_monitor_in_mode_min_prefers_lower_values(tmp_path):
    said = {"validation": {"metric": "score", "mode": "min"}, "early_stop": {"patience": 1}}
    run = tiny.fit(tmp_path, scored([0.5, 0.4, 0.6, 0.1]), epochs=4, **said)
    assert (run.status["step"], run.best.step) == (9, 6)


def test_early_stop_patience_continues_after_resume(tmp_path):
    said = {"epochs": 5, "validation": SCORE, "early_stop": {"patience": 2}}
    values = [0.5, 0.4, 0.3, 0.2, 0.1]
    with tiny.prepare(tmp_path, scored(values), **said) as session:
        tiny.evaluate_twice(session)
    run = tiny.fit(tmp_path, scored(values[2:]), **said)
    assert run.status["step"] == 9


OFTEN = {"validation": {"every": "4 steps", **SCORE}, "checkpoint": {"every": "2 steps"}}


def test_last_save_includes_the_last_evaluation(tmp_path):
    values = [0.5, 0.4, 0.3]  # at steps 4, 8 and the end: the best is not the last
    said = {**OFTEN, "max_steps": 10}
    with tiny.prepare(tmp_path, scored(values), **said) as session:
        fit(session)
        ended = vars(session.state.best)
    assert (ended["latest_step"], ended["since_best"]) == (10, 2)
    with tiny.prepare(tmp_path, scored(values), **said) as again:
        assert again.finished
        assert vars(again.state.best) == ended
    assert Run(tmp_path).last.metrics["val/score"] == pytest.approx(0.3)


# Ten evaluations, one every second step; the regular saves are at other steps.
RANKED = [0.9, 0.1, 0.2, 0.8, 0.3, 0.15, 0.7, 0.2, 0.1, 0.05]
THREE = {
    **{"validation": {"every": "2 steps", **SCORE}, "max_steps": 20},
    **{"checkpoint": {"every": "5 steps", "keep_last": 1, "keep_best": 3}},
}


def test_best_checkpoints_of_all_evaluations_are_preserved(tmp_path):
    run = tiny.fit(tmp_path, scored(RANKED), **THREE)
    assert [each.step for each in run.verify()] == [2, 8, 14, 20]


@pytest.mark.parametrize("stop", [6, 9, 13])
def test_resumed_run_preserves_the_best_of_all_evaluations(tmp_path, stop):
    class Stops(surestep.Callback):
        def on_step(self, state, result):
            if result.step == stop:
                os.kill(os.getpid(), signal.SIGUSR1)

    task, config = tiny.task(**scored(RANKED)), tiny.config(**THREE)
    with pytest.raises(Preempted):
        surestep.Trainer(task, config, run=tmp_path, callbacks=[Stops()]).fit()
    asked = (stop - 1) // 2  # an interrupted evaluation runs first after resume
    run = tiny.fit(tmp_path, scored(RANKED[asked:]), **THREE)
    assert [each.step for each in run.verify()] == [2, 8, 14, 20]


def test_run_that_was_stopped_by_a_signal_can_be_evaluated(tmp_path):
    class Stops(surestep.Callback):
        def on_step(self, state, result):
            os.kill(os.getpid(), signal.SIGUSR1)

    trainer = surestep.Trainer(tiny.task(), tiny.config(), run=tmp_path, callbacks=[Stops()])
    with pytest.raises(Preempted):
        trainer.fit()
    found = trainer.evaluate("train", "last")
    with surestep.prepare(tiny.task(), tiny.config(), run=tmp_path) as session:
        assert found == session.evaluate_checkpoint("train", "last")
    assert len(trainer.predict("train", "last")["index"])


def test_interrupted_evaluation_runs_after_the_start_of_the_callbacks(tmp_path):
    moments = []

    class Stops(surestep.Callback):
        def on_step(self, state, result):
            if result.step == 6:
                os.kill(os.getpid(), signal.SIGUSR1)

    class Records(surestep.Callback):
        def on_start(self, state):
            moments.append("start")

        def on_evaluate(self, state, metrics):
            moments.append(state.progress.step)

    task, config = tiny.task(**scored(RANKED)), tiny.config(**THREE)
    with pytest.raises(Preempted):
        surestep.Trainer(task, config, run=tmp_path, callbacks=[Stops()]).fit()
    task = tiny.task(**scored(RANKED[2:]))
    surestep.Trainer(task, config, run=tmp_path, callbacks=[Records()]).fit()
    assert moments[:3] == ["start", 6, 8]


def test_best_checkpoint_ignores_the_min_delta(tmp_path):
    """The min_delta applies to early stopping only."""
    said = {"early_stop": {"patience": 9, "min_delta": 0.5}, "checkpoint": {"every": "9 epochs"}}
    run = tiny.fit(tmp_path, scored([0.5, 0.6, 0.1]), epochs=3, validation=SCORE, **said)
    assert run.best.step == 6


@pytest.mark.parametrize(
    ("every", "steps"),
    [
        ("2 steps", [2, 4, 5]),
        ("5 steps", [5]),
        ("9 steps", [5]),
        ("0.5 epochs", [2, 3, 5]),
        ("8 items", None),
    ],
)
@pytest.mark.parametrize("on_start", [False, True])
def test_number_of_evaluations_is_known_before(tmp_path, every, steps, on_start):
    options = {"max_steps": 5, "validation": {"every": every, "on_start": on_start}}
    with tiny.prepare(tmp_path, {"val": tiny.data(3)}, **options) as session:
        planned = count_evaluations(session)
        fit(session)
        events = [e["step"] for e in session.run.events() if e["event"] == "evaluation"]
    if steps is None:
        assert planned is None
    else:
        assert events == [0] * on_start + steps
        assert planned == len(events)


def asks_to_save(moment, step):
    def asks(self, state, *_):
        return surestep.Request.SAVE if state.progress.step == step else None

    return type("Asks", (surestep.Callback,), {moment: asks})()


class GoneError(Exception):
    """The process ends here."""


class Ends(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 5:
            raise GoneError


@pytest.mark.parametrize("moment", ["on_batch", "on_step", "on_evaluate"])
def test_requested_save_contains_the_evaluation_of_its_step(tmp_path, moment):
    values = [0.5, 0.4, 0.3]
    said = {**OFTEN, "checkpoint": {"every": "1 epoch", "keep_best": 0}, "max_steps": 9}
    asks = asks_to_save(moment, 3 if moment == "on_batch" else 4)  # before its step, or after it
    for run, callbacks in (("killed", [asks, Ends()]), ("whole", [asks])):
        task, config = tiny.task(**scored(values)), tiny.config(**said)
        session = surestep.prepare(task, config, run=tmp_path / run, callbacks=callbacks)
        with session, suppress(GoneError):
            fit(session)
    assert Run(tmp_path / "killed").last.step == 4
    with tiny.prepare(tmp_path / "killed", scored(values[1:]), **said) as rest:
        fit(rest)
    assert vars(rest.state.best) == vars(session.state.best)


def test_save_requested_by_the_evaluation_before_the_first_step_is_of_step_0(tmp_path):
    options = {"validation": {"on_start": True}, "checkpoint": {"keep_best": 0}}
    task, config = tiny.task(val=tiny.data(3)), tiny.config(**options)
    asks = asks_to_save("on_evaluate", 0)
    run = surestep.Trainer(task, config, run=tmp_path, callbacks=[asks]).fit()
    steps = [e["step"] for e in run.events() if e["event"] == "checkpoint"]
    assert steps == [0, run.last.step]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_early_stop_is_the_reason_even_if_a_callback_stops_at_the_same_step(tmp_path, is_resumed):
    class Stops(surestep.Callback):
        def on_start(self, state):
            return surestep.Request.STOP if state.progress.step == 6 else None

        def on_evaluate(self, state, metrics):
            return self.on_start(state)

    options = {"epochs": 4, "validation": SCORE, "early_stop": {"patience": 1}}
    if is_resumed:
        with tiny.prepare(tmp_path, scored([0.5, 0.4]), **options) as session:
            tiny.evaluate_twice(session)
    task, config = tiny.task(**scored([0.5, 0.4])), tiny.config(**options)
    run = surestep.Trainer(task, config, run=tmp_path, callbacks=[Stops()]).fit()
    assert run.status["step"] == 6
    assert run.status["reason"].startswith("early stop: val/score did not improve on 0.5")


def test_metric_of_a_collection_can_be_the_monitor(tmp_path):
    import torchmetrics

    accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3, average="micro")
    collection = torchmetrics.MetricCollection({"micro": accuracy})
    parts = {"val": (X, Y), "metrics": {"acc": collection}}
    run = tiny.fit(tmp_path, parts, validation={"metric": "acc_micro", "mode": "max"})
    assert "val/acc_micro" in run.best.metrics


def shares(outputs, targets):
    right = (outputs.argmax(1) == targets).double().mean()
    return {"right": right, "wrong": 1 - right}


@pytest.mark.parametrize("better", [True, {"wrong": False}, None])
def test_value_of_a_metric_that_returns_a_dict_can_be_the_monitor(tmp_path, better):
    metric = surestep.whole_set(shares, higher_is_better=better)
    parts = {"val": (X, Y), "metrics": {"acc": metric}}
    run = tiny.fit(tmp_path, parts, validation={"metric": "acc_right", "mode": "max"})
    net = tiny.model()
    run.load_model(net, "best")
    assert run.monitor == ("val/acc_right", "max")
    assert run.best.metrics["val/acc_right"] == shares(net.eval()(X), Y)["right"]


@pytest.mark.parametrize("name", ["acc", "acc_left"])
def test_metric_without_the_monitored_value_is_rejected_before_the_run(tmp_path, name):
    parts = {"val": (X, Y), "metrics": {"acc": surestep.whole_set(shares)}}
    message = f"validation.metric='val/{name}' is not what the metric returns.*acc_right"
    with pytest.raises(TaskError, match=message):
        tiny.fit(tmp_path, parts, validation={"metric": name, "mode": "max"})
    assert not (tmp_path / "config.json").exists()


def test_metric_without_the_monitored_value_is_rejected_when_it_is_first_defined(tmp_path):
    def of_many(outputs, targets):
        assert len(outputs) > 8, "too few"
        return shares(outputs, targets)

    parts = {"val": (X, Y), "metrics": {"acc": surestep.whole_set(of_many)}}
    message = "validation.metric='val/acc' is not what the metric returns.*val/acc_right"
    with pytest.warns(UserWarning, match="too few"), pytest.raises(TaskError, match=message):
        tiny.fit(tmp_path, parts, validation={"metric": "acc", "mode": "max"})


@pytest.mark.parametrize(
    "returned", [shares, lambda outputs, targets: [1.0, "a"], lambda o, t: None]
)
def test_metric_function_that_returns_no_number_is_rejected(tmp_path, returned):
    parts = {"val": (X, Y), "metrics": {"acc": returned}}
    message = r"metrics\['acc'\] returned a (dict|list|NoneType)\. Return a mean .*whole_set\(fn\)"
    with pytest.raises(TaskError, match=message):
        tiny.fit(tmp_path, parts)


def infinite_input():
    x = X.clone()
    x[12] = torch.inf
    return {"train": (x, Y), "model": tiny.model()}


def test_nonfinite_run_saves_the_state_before_the_step(tmp_path):
    with pytest.raises(NonFiniteError) as caught:
        tiny.fit(tmp_path / "a", infinite_input(), data={"shuffle": False})
    run = Run(tmp_path / "a")
    assert (run.last.step, run.status["status"], run.status["step"]) == (1, "failed", 1)
    assert "step-00000001" in caught.value.__notes__[0]
    with tiny.prepare(tmp_path / "b", infinite_input(), data={"shuffle": False}) as session:
        next(session.steps())
        saved = tiny.model(seed=3)
        run.load_model(saved, "last")
        assert torch.equal(tiny.weights(saved), tiny.weights(session.model))


@pytest.mark.parametrize("first", [3, 4])
def test_resumed_run_is_bitwise_identical_to_an_uninterrupted_one(tmp_path, first):
    parts = {"val": (X, Y)}
    whole = tiny.fit(tmp_path / "a", parts, epochs=3)
    with tiny.prepare(tmp_path / "b", parts, epochs=3) as session:
        for result in session.steps():
            if result.step == first:
                session.save()
                break
    broken = tiny.fit(tmp_path / "b", parts, epochs=3)
    models = tiny.model(seed=1), tiny.model(seed=2)
    for run, model in zip((whole, broken), models, strict=True):
        run.load_model(model, "last")
    assert torch.equal(*map(tiny.weights, models))
    assert whole.best.metrics == broken.best.metrics


def test_session_metadata_is_saved_and_restored(tmp_path):
    with tiny.prepare(tmp_path) as session:
        session.metadata["fold"] = 3
        path = session.save()
    assert read_record(path)["metadata"] == {"fold": 3}
    with tiny.prepare(tmp_path) as session:
        assert session.metadata == {"fold": 3}


def test_checkpoints_can_be_saved_by_elapsed_time(tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 40))
    monkeypatch.setattr(world, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    said = {"checkpoint": {"every": "1 minute", "keep_last": 9}, "logging": {"every": "1 step"}}
    run = tiny.fit(tmp_path, **said)
    assert len(list_checkpoints(run.checkpoints)) > 1


CHILD = textwrap.dedent(
    """
    import sys
    import torch
    from tests import tiny
    torch.set_num_threads(1)

    class Slow(torch.nn.Linear):
        def forward(self, x):
            if self.training:
                print("step", flush=True)
                while sys.stdin.readline() and sys.argv[2]:
                    pass
            return super().forward(x)

    tiny.fit(sys.argv[1], {"model": Slow(4, 3)}, logging={"progress": "plain"})
    """
)


@pytest.fixture
def child(tmp_path):
    """Start a process that takes a step per line it reads; "stuck" takes none."""
    started = []

    def start(stuck=""):
        process = subprocess.Popen(
            [warm_python(), "-c", CHILD, str(tmp_path), stuck],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        assert process.stdout.readline() == "step\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ctrl_c_stops_after_the_step_and_saves(tmp_path, child):
    process = child()
    process.send_signal(signal.SIGINT)
    wait_for(process, "stopping after this step")
    _, errors = process.communicate("\n" * 100, timeout=120)
    run = Run(tmp_path)
    assert (run.last.step, run.status["status"], run.status["reason"]) == (1, "stopped", "Ctrl-C")
    assert "Stopped after step 1; saved as" in errors
    assert f"Run the script again with run={str(tmp_path)!r} to resume." in errors
    assert "KeyboardInterrupt" in errors


def test_second_ctrl_c_stops_immediately(tmp_path, child):
    process = child("stuck")
    process.send_signal(signal.SIGINT)
    wait_for(process, "Another Ctrl-C stops at once")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) != 0
    assert Run(tmp_path).find_checkpoint("last") is None


def test_stopped_run_can_be_resumed(tmp_path):
    class Stopping(surestep.Callback):
        def on_step(self, state, result):
            if result.step == 2:
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    task, config = tiny.task(), tiny.config()
    with pytest.raises(KeyboardInterrupt):
        surestep.Trainer(task, config, run=tmp_path, callbacks=[Stopping()]).fit()
    assert Run(tmp_path).last.step == 2
    assert signal.getsignal(signal.SIGINT) is before
    assert tiny.fit(tmp_path).status["step"] == 6


def wait_for(process, text):
    timer = threading.Timer(60, process.kill)  # its closed pipe ends the loop
    timer.start()
    try:
        if any(text in line for line in iter(process.stderr.readline, "")):
            return
    finally:
        timer.cancel()
    pytest.fail(f"{text!r} never came")
