"""How a run goes on in the middle of a stream: what a checkpoint holds of it, and what is said."""

from typing import Any

from surestep.engine.data.own_state import BY_STATE, mark_of
from surestep.engine.data.passes import Stream
from surestep.engine.plan import Plan
from surestep.engine.state import Place, State, Stateful

STREAM = "the training stream"  # what its state is called in a checkpoint


class _StreamState:
    """The mark of a stream that belongs to what was consumed, and not to what was read ahead."""

    def __init__(self, stream: Stream, state: State) -> None:
        self.stream = stream
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        """Return the mark of the place; nothing at the beginning of an epoch."""
        place = self.state.place
        mark = self.stream.mark_at(place.epoch, place.position)
        return {} if mark is None else mark.as_json()

    def load_state_dict(self, saved: Any) -> None:
        """Let the stream go on from the mark of another time."""
        mark = mark_of(saved)
        self.stream.marks.clear()
        if mark is not None:
            self.stream.marks.append(mark)


def declared_of(source: object, plan: Plan, state: State) -> dict[str, Stateful]:
    """Return by name what a checkpoint holds of the training data itself."""
    if not isinstance(source, Stream) or plan.data_resume != BY_STATE:
        return {}
    return {STREAM: _StreamState(source, state)}


def going_on(source: object, plan: Plan, place: Place) -> str:
    """Say how a stream goes on at a place, and what that costs; nothing where it has positions."""
    if not isinstance(source, Stream) or not place.position:
        return ""
    mark = source.mark_at(place.epoch, place.position)
    if mark is None:
        why = plan.reason("data.resume")
        if plan.data_resume == BY_STATE:
            why = "the checkpoint has no state of it that fits"
        return f", reading {place.position:,} samples of the stream again: {why}"
    again = mark.again + place.position - mark.position
    also = f", reading {again:,} samples again" if again else ""
    return f", the stream by its own state{also}"
