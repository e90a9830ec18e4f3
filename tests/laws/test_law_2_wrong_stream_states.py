"""Law 2 for streams whose `state_dict` is wrong: noticed, and read again instead."""

import threading

import pytest
import torch
from torch.utils.data import get_worker_info

from surestep.engine.data import stream_loader as passes
from tests.laws.support.stateful_streams import (
    Counted,
    check_own_state,
    check_with_output,
    resume_output,
)
from tests.laws.support.tasks import session_of, train
from tests.laws.test_law_2_resuming import OPTIONS, task_of

pytestmark = pytest.mark.usefixtures("take_every_state")


class Lying(Counted):
    def load_state_dict(self, state):
        self.at = state["at"] + 1


class Buffering(Counted):
    """Buffers samples that its state does not hold."""

    def __iter__(self):
        waiting = []
        for sample in super().__iter__():
            waiting.append(sample)
            if len(waiting) > 4:
                yield waiting.pop(1)
        yield from waiting


class Odd(Counted):
    def state_dict(self):
        return {"at": self.at, "what": {1, 2}}


class Broken(Counted):
    def load_state_dict(self, state):
        raise OSError("gone")


class Locked(Counted):
    """Cannot be copied, because it holds a lock."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def __iter__(self):
        self.at = 0
        return super().__iter__()


class Stale(Counted):
    """Reports the state that it began with once a state was loaded."""

    stale = None

    def state_dict(self):
        return super().state_dict() if self.stale is None else self.stale

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.stale = {"at": 0, "epoch": self.epoch}


CANNOT = {
    Lying: "after loading its state of 8 samples, Lying continues with others",
    Buffering: "after loading its state of 8 samples, Buffering continues with others",
    Odd: "state_dict() of Odd failed: TypeError('a set has no form in JSON or safetensors')",
    Broken: "load_state_dict() of Broken failed: OSError('gone')",
    Stale: (
        "Stale continues with others after loading a state that it saved after loading its state "
        "of 8 samples"
    ),
    Locked: "copying it, since a state is loaded into a copy, failed: TypeError",
}


@pytest.mark.parametrize("kind", CANNOT)
def test_unusable_state_is_reported_and_the_stream_read_again(folder, capsys, kind):
    output, plan = check_with_output(folder, capsys, kind)
    assert f"reading 36 samples of the stream again: {CANNOT[kind]}" in output
    assert plan.data_resume == "by reading again"
    assert plan.reason("data.resume").startswith(CANNOT[kind])


class LyingLate(Counted):
    """Loads a wrong position, but not of the first samples, which are tried before the run."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.at += self.at > 12


class StaleLate(Stale):
    """Is stale if a state of later samples was loaded."""

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.at < 13:
            self.stale = None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("stop_at", [7, 8])
def test_state_that_is_wrong_later_is_noticed_and_the_stream_read_again(folder, workers, stop_at):
    with pytest.warns(UserWarning, match=r"own state of (18|27) samples, .* with other samples"):
        check_own_state(folder, LyingLate, stop_at=stop_at, data={"num_workers": workers})


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize(("workers", "stop_at"), [(2, 8), (2, 9), (3, 6)])
def test_wrong_states_of_several_workers_are_noticed(folder, workers, stop_at):
    class WrongInTheSecond(Counted):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            info = get_worker_info()
            self.at += self.at > 3 and info is not None and info.id == 1

    options = {"batch_size": 4, "micro_batch_size": 4, "data": {"num_workers": workers}}
    with pytest.warns(UserWarning, match=r"own state of \d+ samples, .* with other samples"):
        check_own_state(folder, WrongInTheSecond, stop_at=stop_at, **options)


@pytest.mark.filterwarnings("ignore:After loading its own state")
@pytest.mark.parametrize("workers", [0, 1])
def test_second_resume_from_a_state_that_is_stale_by_then_changes_nothing(folder, workers):
    options = {**OPTIONS, "data": {"num_workers": workers}}
    whole, run = train(task_of(StaleLate()), folder(), **options), folder()
    for stop_at in (7, 8, 14):
        with session_of(task_of(StaleLate(), other_weights=stop_at > 7), run, **options) as session:
            for result in session.steps():
                if result.step == stop_at:
                    session.save()
                    break
    for a, b in zip(whole.model.parameters(), session.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_state_without_digests_is_used_and_reported_as_unchecked(folder, capsys, monkeypatch):
    monkeypatch.setattr(passes._StreamWorker, "_digest", lambda *_: None)  # as before digests
    output, _ = resume_output(folder, capsys, Counted)
    assert "by its own state (not compared with what was read before: the checkpoint has" in output
