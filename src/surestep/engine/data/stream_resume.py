"""How a run goes on in the middle of a stream: what a checkpoint holds of it, and what is said."""

from itertools import islice
from typing import Any

from surestep.engine.data.state_encoding import encode_state
from surestep.engine.data.stream import LOOKED_AT, StreamReader, digest
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.data.stream_state import (
    BY_STATE,
    StreamStateTracker,
    WorkerProgress,
    copy_sharing_arrays,
    has_state,
    parse_stream_checkpoint,
)
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import preserve_rng, seed_loading
from surestep.engine.state.state import Progress, State, Stateful

STREAM = "the training stream"  # what its state is called in a checkpoint


class _StreamCheckpointState:
    """The mark of a stream that belongs to what was consumed, and not to what was read ahead."""

    def __init__(self, stream: StreamLoader, state: State) -> None:
        self.stream = stream
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the mark of the place; nothing at the beginning of an epoch."""
        place = self.state.progress
        mark = self.stream.checkpoint_at(place.epoch, place.position)
        return {} if mark is None else mark.as_json()

    def load_state_dict(self, saved: Any) -> None:
        """Let the stream go on from the mark of another time."""
        mark = parse_stream_checkpoint(saved)
        self.stream.marks.clear()
        if mark is not None:
            self.stream.marks.append(mark)


def checkpoint_state(source: object, plan: Plan, state: State) -> dict[str, Stateful]:
    """Return by name what a checkpoint holds of the training data itself."""
    if not isinstance(source, StreamLoader) or plan.data_resume != BY_STATE:
        return {}
    return {STREAM: _StreamCheckpointState(source, state)}


def describe_resume(source: object, plan: Plan, place: Progress) -> str:
    """Say how a stream goes on at a place, and what that costs; nothing where it has positions."""
    if not isinstance(source, StreamLoader) or not place.position:
        return ""
    mark = source.checkpoint_at(place.epoch, place.position)
    if mark is None:
        why = plan.reason("data.resume")
        if plan.data_resume == BY_STATE:
            why = "the checkpoint has no state of it that fits"
        return f", reading {place.position:,} samples of the stream again: {why}"
    again = mark.again + place.position - mark.position
    also = f", reading {again:,} samples again" if again else ""
    return f", the stream by its own state{also}"


HALF = LOOKED_AT // 2


def stream_state_problem(stream: Any) -> str:
    """Say why a stream cannot go on by its own state; nothing where it can, as far as one sees.

    What comes after some samples is compared with what comes after loading the state there.
    """
    with preserve_rng():
        try:
            return _owner_fails(stream) or _state_fails(stream)
        except Exception as error:  # of the user's code; whoever reads it next says so
            return f"reading its first samples failed: {error!r}"


def _owner_fails(stream: Any) -> str:
    own = StreamStateTracker()
    seed_loading(0)
    own.start(stream, 0)
    if own.owner is None:
        return "it has no state_dict() and load_state_dict()"
    try:
        if has_state(stream):
            copy_sharing_arrays(stream)
    except Exception as error:  # of the user's classes, which may raise anything
        return f"its state would be loaded into a copy, and it cannot be copied: {error!r}"
    return ""


def _state_fails(stream: Any) -> str:
    reader, own = StreamReader(stream, seed=0), StreamStateTracker()
    samples = reader.samples(0, own=own)
    before = list(islice(samples, HALF))
    name = type(own.owner).__name__
    try:
        state = encode_state(own.owner.state_dict())
    except TypeError as error:
        return f"the state of {name} has a {error}, which has no form in JSON or safetensors"
    except Exception as error:
        return f"state_dict() of {name} failed: {error!r}"
    after = [digest(each) for each in islice(samples, HALF)]
    again = StreamStateTracker(WorkerProgress(len(before), len(before), state))
    try:
        found = [digest(each) for each in islice(reader.samples(0, own=again), HALF)]
    except Exception as error:
        return f"load_state_dict() of {name} failed: {error!r}"
    if found == after:
        return ""
    return f"after loading its state of {len(before)} samples, {name} goes on with others"
