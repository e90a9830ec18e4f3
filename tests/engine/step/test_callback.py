import pytest

import surestep
from surestep.base.errors import Preempted, TaskError
from surestep.engine.step.callback import Callback, Request, stateful_callbacks
from surestep.engine.step.part import parts_with
from surestep.trainer.trainer import Trainer
from tests import tiny

HOOKS = (
    *("on_start", "on_batch", "on_backward", "on_step", "on_log", "on_evaluate", "on_save"),
    *("on_exception", "on_end"),
)


class Recorder(Callback):
    """Records each hook, and returns `request` once from one of them."""

    def __init__(self, hook="", request=None):
        self.hooks = []
        self.hook, self.request = hook, request

    def record(self, hook):
        self.hooks.append(hook)
        if hook == self.hook:
            self.hook = ""
            return self.request
        return None


for each in HOOKS:
    setattr(Recorder, each, lambda self, *_, each=each: self.record(each))


def watched(tmp_path, *callbacks, **options):
    parts = tiny.task(val=tiny.data(5))
    return Trainer(parts, tiny.config(**options), run=tmp_path / "run", callbacks=callbacks)


def test_hooks_are_called_in_order(tmp_path):
    diary = Recorder()
    watched(tmp_path, diary, max_steps=2, validation={"every": "2 steps"}).fit()
    step = ["on_batch", "on_backward", "on_step"]
    ended = ["on_log", "on_evaluate", "on_save", "on_end"]
    assert diary.hooks == ["on_start", *step, *step, *ended]


def test_hooks_that_are_not_overridden_are_not_called():
    class Steps(Callback):
        def on_step(self, state, result):
            return None

    steps = Steps()
    assert parts_with([Callback(), steps], "on_step") == [steps]
    assert parts_with([Callback(), steps], "on_batch") == []


def test_stop_ends_the_run_after_the_step(tmp_path):
    run = watched(tmp_path, Recorder("on_step", Request.STOP), epochs=3).fit()
    assert run.status["step"] == 1
    assert run.status["reason"] == "a callback asked to stop"


@pytest.mark.parametrize("hook", ["on_step", "on_log", "on_evaluate", "on_save"])
def test_paused_run_resumes_bitwise_identically(tmp_path, hook):
    options = {"epochs": 3, "validation": {"every": "2 steps"}, "checkpoint": {"every": "1 steps"}}
    whole = watched(tmp_path / "whole", Callback(), **options).fit()
    with pytest.raises(Preempted, match="a callback asked to pause: Stopped after step"):
        watched(tmp_path / "paused", Recorder(hook, Request.PAUSE), **options).fit()
    paused = surestep.Run(tmp_path / "paused" / "run")
    assert paused.status["status"] == "stopped"
    assert paused.status["reason"] == "a callback asked to pause"
    assert paused.status["resumable"] is True
    assert 0 < paused.status["step"] < whole.status["step"]
    resumed = watched(tmp_path / "paused", Callback(), **options).fit()
    assert resumed.status["status"] == "finished"
    assert weights_of(resumed) == weights_of(whole)


def weights_of(run):
    model = tiny.model(seed=9)
    run.load_model(model, which="last")
    return {name: value.tolist() for name, value in model.state_dict().items()}


def test_on_log_gets_every_step_once_as_python_floats(tmp_path):
    class Losses(Callback):
        losses, steps = [], []

        def on_log(self, state, point):
            self.losses += point.loss
            self.steps += range(point.first_step, point.first_step + len(point.loss))

    watcher = Losses()
    run = watched(tmp_path, watcher, max_steps=7, logging={"every": "3 steps"}).fit()
    assert watcher.steps == list(range(1, 8))
    assert all(type(each) is float for each in watcher.losses)
    assert watcher.losses == [
        loss for event in run.events() if event["event"] == "steps" for loss in event["loss"]
    ]


def test_request_of_on_log_is_handled_at_that_log_point(tmp_path):
    trainer = watched(
        tmp_path, Recorder("on_log", Request.SAVE), max_steps=7, logging={"every": "3 steps"}
    )
    with trainer.session as session:
        steps = session.steps()
        for _ in range(3):
            next(steps)
        assert session.saving.is_current
        assert session.state.progress.step == 3


@pytest.mark.parametrize("async_save", [True, False])
def test_on_save_gets_each_published_checkpoint_with_its_metrics(tmp_path, async_save):
    class Saves(Callback):
        saved = []

        def on_save(self, state, checkpoint):
            assert (checkpoint.path / "manifest.json").exists()
            self.saved.append(checkpoint)

    Saves.saved = []
    options = {"max_steps": 6, "validation": {"every": "4 steps"}}
    every = {"every": "2 steps", "async_save": async_save, "keep_last": 9}
    run = watched(tmp_path, Saves(), **options, checkpoint=every).fit()
    steps = [2, 4, 6, 6]  # the last one is saved again after the final evaluation
    assert [each.step for each in Saves.saved] == steps
    assert [each.path.name for each in Saves.saved] == [f"step-{n:08d}" for n in steps]
    events = [event for event in run.events() if event["event"] == "evaluation"]
    evaluated = {event["step"]: event["metrics"] for event in events}
    assert [each.metrics for each in Saves.saved] == [{}, evaluated[4], {}, evaluated[6]]


class Fails(Exception):
    pass


def test_on_exception_gets_the_error_before_on_end(tmp_path):
    class Watcher(Recorder):
        error = None

        def on_exception(self, state, error):
            self.error = error
            raise ValueError("of its own")

    watcher = Watcher()

    def fail(*_):
        raise Fails("in the forward")

    trainer = watched(tmp_path, watcher, max_steps=3)
    trainer.session.model.forward = fail
    with pytest.raises(Fails, match="in the forward") as caught:
        trainer.fit()
    assert watcher.error is caught.value
    assert caught.value.__notes__ == ["Watcher.on_exception failed: ValueError: of its own"]
    assert watcher.hooks[-1] == "on_end"


def test_on_exception_is_not_called_when_a_run_pauses_or_ends(tmp_path):
    diary = Recorder("on_step", Request.PAUSE)
    with pytest.raises(Preempted):
        watched(tmp_path, diary, max_steps=3).fit()
    watched(tmp_path, diary, max_steps=3).fit()
    assert "on_exception" not in diary.hooks


def test_save_request_writes_a_checkpoint_of_the_step(tmp_path):
    with watched(tmp_path, Recorder("on_step", Request.SAVE), epochs=3).session as session:
        next(session.steps())
        session.saving.collect(wait=True)
        assert session.run.last.step == 1


def test_each_callback_gets_its_own_metrics(tmp_path):
    class Clears(Callback):
        def __init__(self):
            self.names = []

        def on_evaluate(self, state, metrics):
            self.names += metrics
            metrics.clear()

    both = [Clears(), Clears()]
    run = watched(tmp_path, *both, max_steps=1).fit()
    assert both[0].names == both[1].names == [*run.last.metrics]


@pytest.mark.parametrize("hooks", [("on_backward", "on_step"), ("on_step", "on_step")])
def test_requests_of_two_callbacks_in_one_step_are_done_once(tmp_path, hooks):
    diaries = [Recorder(hook, Request.SAVE) for hook in hooks]
    with watched(tmp_path, *diaries, epochs=3).session as session:
        next(session.steps())
        session.saving.collect(wait=True)
    assert [e["step"] for e in session.run.events() if e["event"] == "checkpoint"] == [1]


def test_evaluate_request_runs_an_evaluation_after_the_step(tmp_path):
    diary = Recorder("on_step", Request.EVALUATE)
    with watched(tmp_path, diary, epochs=3).session as session:
        next(session.steps())
        assert diary.hooks[-1] == "on_evaluate"


def test_request_during_a_step_is_handled_after_it(tmp_path):
    with watched(tmp_path, Recorder("on_backward", Request.SAVE), epochs=3).session as session:
        next(session.steps())
        session.saving.collect(wait=True)
        assert session.run.last.step == 1


def test_on_end_is_called_once_even_if_a_session_is_closed_twice(tmp_path):
    diary = Recorder()
    with watched(tmp_path, diary, max_steps=1).session as session:
        session.close()
    session.close()
    assert diary.hooks.count("on_end") == 1


class Memory(Callback):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def named(name):
    memory = Memory()
    memory.name = name
    return memory


def test_stateful_callbacks_are_keyed_by_name_or_class():
    first, other = Memory(), named("other")
    assert stateful_callbacks([Recorder(), first, other]) == {"Memory": first, "other": other}


def test_two_callbacks_with_one_name_are_rejected():
    for pair in ([Memory(), Memory()], [named("a"), named("a")]):
        with pytest.raises(TaskError, match=r"Two callbacks .* Memory.name = 'first'"):
            stateful_callbacks(pair)


@pytest.mark.parametrize(
    ("method", "lacks"),
    [("state_dict", r"load_state_dict\(state\)"), ("load_state_dict", "state_d")],
)
def test_callback_that_only_saves_or_only_loads_is_rejected(method, lacks):
    half = Recorder()
    setattr(half, method, dict)
    with pytest.raises(TaskError, match=f"Recorder has no {lacks}.*both, or neither"):
        stateful_callbacks([half])


@pytest.mark.parametrize("reply", [3, [], True])
def test_reply_of_a_hook_that_means_nothing_is_an_error(tmp_path, reply):
    trainer = watched(tmp_path, Recorder("on_step", reply), max_steps=2)
    with pytest.raises(TaskError, match=r"Recorder.on_step returned .*Return None, a surestep"):
        trainer.fit()
    watched(tmp_path / "end", Recorder("on_end", reply), max_steps=1).fit()


def test_text_that_a_hook_returns_is_printed_and_an_event(tmp_path, capsys):
    options = {"max_steps": 2, "logging": {"progress": "plain"}}
    run = watched(tmp_path, Recorder("on_step", "look here"), **options).fit()
    notices = [event for event in run.events() if event["event"] == "notice"]
    assert [(event["text"], event["step"]) for event in notices] == [("look here", 1)]
    assert capsys.readouterr().err.count("look here\n") == 1


def test_error_of_on_end_does_not_hide_the_error_that_ended_the_run(tmp_path):
    class FailsToEnd(Recorder):
        def on_end(self, state):
            super().on_end(state)
            raise ValueError("cannot end")

    first, diary = FailsToEnd(), Recorder()
    trainer = watched(tmp_path, diary, first, max_steps=3)
    session = trainer.session

    def fail(*_):
        raise Fails("in the forward")

    session.model.forward = fail
    with pytest.raises(Fails, match="in the forward") as caught:
        trainer.fit()
    assert caught.value.__notes__ == ["While closing: ValueError: cannot end"]
    assert diary.hooks[-1] == first.hooks[-1] == "on_end"
    assert session.run.status["status"] == "failed"


def test_all_errors_of_on_end_are_notes_of_the_error_that_ended_the_run(tmp_path):
    class FailsTwice(Callback):
        def __init__(self, name):
            self.name = name

        def on_step(self, state, result):
            raise Fails("in the step")

        def on_end(self, state):
            raise ValueError(self.name)

    trainer = watched(tmp_path, FailsTwice("first"), FailsTwice("second"), max_steps=3)
    with pytest.raises(Fails, match="in the step") as caught:
        trainer.fit()
    assert caught.value.__notes__ == [
        f"While closing: ValueError: {name}" for name in ("second", "first")
    ]
    status = trainer.session.run.status
    assert (status["status"], status["reason"]) == ("failed", "Fails: in the step")


def test_error_of_on_end_is_raised_and_the_run_is_closed(tmp_path):
    class FailsToEnd(Callback):
        def on_end(self, state):
            raise ValueError("cannot end")

    with pytest.raises(ValueError, match="cannot end"):
        watched(tmp_path, FailsToEnd(), max_steps=2).fit()
    run = watched(tmp_path, Recorder(), max_steps=2).fit()  # the folder is not locked
    assert run.status["status"] == "finished"
