"""Law 2 for streams with `state_dict`: resumed by it equals uninterrupted, bit for bit.

No sample is read again, or with several workers the last batch of some, to compare it. Wrong
states are in test_law_2_wrong_stream_states.py, and streams of libraries in
test_law_2_stream_libraries.py.
"""

import pytest
import torch

from surestep.base.errors import DataError
from surestep.engine.data import stream_loader as passes
from surestep.engine.data import stream_state as own_state
from tests.laws.support.stateful_streams import (
    READ,
    STREAMS,
    Counted,
    Uneven,
    check_own_state,
    resume_output,
)
from tests.laws.support.tasks import session_of, train
from tests.laws.test_law_2_resuming import OPTIONS, check_resume, task_of

pytestmark = pytest.mark.usefixtures("take_every_state")


@pytest.mark.parametrize("kind", STREAMS)
def test_stream_resumes_from_its_state(folder, kind):
    check_own_state(folder, STREAMS[kind])


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("stop_at", [3, 5, 6])
def test_stream_resumes_at_any_step_with_any_workers(folder, workers, stop_at):
    check_own_state(folder, stop_at=stop_at, data={"num_workers": workers})


@pytest.mark.parametrize("stop_at", [2, 3, 4])
def test_stream_resumes_after_one_worker_has_ended(folder, stop_at):
    check_own_state(folder, Uneven, stop_at=stop_at, data={"num_workers": 2})


def test_stream_of_one_worker_resumes_without_workers(folder):
    check_own_state(folder, data={"num_workers": 1}, then={"data": {"num_workers": 0}})


def reads_of_a_resume(folder, make, stop_at, **more):
    """Return how often the rest of the second epoch reads each sample, and the events."""
    run, options = folder(), {**OPTIONS, "max_steps": 10, **more}
    with session_of(task_of(make()), run, **options) as session:
        for result in session.steps():
            if result.step == stop_at:
                session.save()
                break
    with session_of(task_of(make()), run, **options) as session:
        READ.zero_()  # what the first checks read
        assert len(list(session.steps())) == 10 - stop_at
    return READ.clone()


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("workers", [0, 1])
def test_no_sample_is_read_again(folder, kind, workers):
    reads = reads_of_a_resume(folder, STREAMS[kind], 7, data={"num_workers": workers})
    assert reads.sum() == 44 - 2 * 9
    assert reads.max() == 1


def test_two_workers_read_only_the_batch_again_after_which_nothing_was_read(folder):
    # Each worker has 22 samples: two batches, of which the run has used one.
    reads = reads_of_a_resume(folder, Counted, 7, data={"num_workers": 2})
    assert (reads.sum(), reads.max()) == (44 - 9, 1)


def test_session_entered_again_reads_no_sample_again(folder):
    with session_of(task_of(Counted()), folder(), **OPTIONS) as session:
        for result in session.steps():
            if result.step == 7:
                break
        READ.zero_()
        assert [result.step for result in session.steps()] == list(range(8, 15))
        assert READ.sum() == 44 - 2 * 9 + 44  # and the next epoch, of which one batch is prefetched


def test_evaluating_on_the_same_stream_changes_nothing(folder):
    run, data = folder(), Counted()
    whole = train(task_of(data), folder(), **OPTIONS)
    with session_of(task_of(data), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step == 7:
                session.evaluate("train")
                session.save()
                break
    again = train(task_of(data, other_weights=True), run, **OPTIONS)
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_expensive_state_is_taken_rarely_and_the_rest_is_read_again(folder, monkeypatch):
    monkeypatch.setattr(own_state, "CHEAP_S", 0.0)
    monkeypatch.setattr(own_state, "SHARE", 1e9)  # the first four, then never
    check_own_state(folder, stop_at=5)
    reads = reads_of_a_resume(folder, Counted, 5)
    assert reads.sum() == 44


def test_resume_by_state_is_reported(folder, capsys):
    output, plan = resume_output(folder, capsys, Counted)
    assert "from step 3, epoch 1, the stream by its own state.\n" in output
    assert plan.data_resume == "by its own state"


def test_stream_with_a_shuffle_buffer_is_read_again(folder, capsys):
    output, _ = resume_output(folder, capsys, Counted, data={"shuffle_buffer": 10})
    assert "again: the samples in data.shuffle_buffer are not in the stream's state" in output


def take_state_after_prefetch(patch):
    patch.setattr(
        passes._StreamCheckpointState,
        "state_dict",
        lambda self: (
            self.stream.checkpoints[-1]
            ._replace(position=self.state.progress.position, epoch=self.state.progress.epoch)
            .as_json()
        ),
    )


def restart_numbering(patch):
    own = own_state.StreamStateTracker.start

    def begin(self, stream, epoch, **more):
        found = own(self, stream, epoch, **more)
        self.read = 0
        return found

    patch.setattr(own_state.StreamStateTracker, "start", begin)


def skip_loading(patch):
    patch.setattr(
        own_state.StreamStateTracker, "_own", lambda self, owner: setattr(self, "owner", owner)
    )


def forget_worker_order(patch):
    def begin(self, epoch, start):
        mark = own(self, epoch, start)
        if self._pass.checkpoint is not None:
            self._pass.checkpoint = self._pass.checkpoint._replace(last=-1)
        return mark

    own = passes.StreamLoader._begin
    patch.setattr(passes.StreamLoader, "_begin", begin)


@pytest.mark.parametrize(
    ("mutate", "workers"),
    [
        (take_state_after_prefetch, 0),
        (restart_numbering, 0),
        (skip_loading, 0),
        (forget_worker_order, 2),
    ],
)
def test_check_fails_if_the_law_is_broken(folder, monkeypatch, mutate, workers):
    mutate(monkeypatch)
    monkeypatch.setattr("surestep.trainer.planning.find_state_problem", lambda _: "")
    monkeypatch.setattr(passes, "_differs", lambda *_: False)  # else the stream is read again
    options = {"batch_size": 4, "micro_batch_size": 4, "data": {"num_workers": workers}}
    with pytest.raises((AssertionError, DataError)):
        check_resume(folder, Counted, stop_at=3, **options)
