import pytest

from surestep.base.errors import TaskError
from surestep.engine.callback import Callback, Request, declared, overriding
from surestep.trainer.trainer import Trainer
from tests import tiny

MOMENTS = ("on_start", "on_batch", "on_backward", "on_step", "on_evaluate", "on_end")


class Diary(Callback):
    """Writes down each moment, and asks for `request` at one of them, once."""

    def __init__(self, moment="", request=None):
        self.moments = []
        self.moment, self.request = moment, request

    def seen(self, moment):
        self.moments.append(moment)
        if moment == self.moment:
            self.moment = ""
            return self.request
        return None


for each in MOMENTS:
    setattr(Diary, each, lambda self, *_, each=each: self.seen(each))


def watched(tmp_path, callback, **said):
    parts = tiny.task(val=tiny.data(5))
    return Trainer(parts, tiny.config(**said), run=tmp_path / "run", callbacks=[callback])


def test_the_moments_come_in_their_order(tmp_path):
    diary = Diary()
    watched(tmp_path, diary, max_steps=2, validation={"every": "2 steps"}).fit()
    step = ["on_batch", "on_backward", "on_step"]
    assert diary.moments == ["on_start", *step, *step, "on_evaluate", "on_end"]


def test_what_a_callback_does_not_override_costs_nothing():
    class Steps(Callback):
        def on_step(self, state, result):
            return None

    steps = Steps()
    assert overriding([Callback(), steps], "on_step") == [steps]
    assert overriding([Callback(), steps], "on_batch") == []


def test_stop_ends_the_run_after_the_step(tmp_path):
    run = watched(tmp_path, Diary("on_step", Request.STOP), epochs=3).fit()
    assert run.status["step"] == 1
    assert run.status["reason"] == "a callback asked to stop"


def test_save_writes_a_checkpoint_of_the_step(tmp_path):
    with watched(tmp_path, Diary("on_step", Request.SAVE), epochs=3).session as session:
        next(session.steps())
        session.saving.collect(wait=True)
        assert session.run.last.step == 1


def test_evaluate_measures_after_the_step(tmp_path):
    diary = Diary("on_step", Request.EVALUATE)
    with watched(tmp_path, diary, epochs=3).session as session:
        next(session.steps())
        assert diary.moments[-1] == "on_evaluate"


def test_a_request_within_a_step_is_done_after_it(tmp_path):
    with watched(tmp_path, Diary("on_backward", Request.SAVE), epochs=3).session as session:
        next(session.steps())
        session.saving.collect(wait=True)
        assert session.run.last.step == 1


def test_on_end_comes_once_however_often_a_session_is_closed(tmp_path):
    diary = Diary()
    with watched(tmp_path, diary, max_steps=1).session as session:
        session.close()
    session.close()
    assert diary.moments.count("on_end") == 1


class Memory(Callback):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def named(name):
    memory = Memory()
    memory.name = name
    return memory


def test_callbacks_with_a_state_go_by_their_name_or_their_class():
    first, other = Memory(), named("other")
    assert declared([Diary(), first, other]) == {"Memory": first, "other": other}


def test_two_of_one_name_are_refused():
    for pair in ([Memory(), Memory()], [named("a"), named("a")]):
        with pytest.raises(TaskError, match=r"Two callbacks .* Memory.name = 'first'"):
            declared(pair)


@pytest.mark.parametrize(
    ("method", "lacks"),
    [("state_dict", r"load_state_dict\(state\)"), ("load_state_dict", "state_d")],
)
def test_a_callback_that_only_saves_or_only_loads_is_refused(method, lacks):
    half = Diary()
    setattr(half, method, dict)
    with pytest.raises(TaskError, match=f"Diary has no {lacks}.*both, or neither"):
        declared([half])
