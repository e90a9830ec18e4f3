"""Take a step that was not finite again: in one process, or on all ranks that share it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.data.batch import Batch
from surestep.engine.data.feed import Feed
from surestep.engine.data.passes import Stream
from surestep.engine.incident.diagnose import Diagnosis, diagnose
from surestep.engine.incident.in_step import (
    OutOfStepError,
    can_look_in_step,
    diagnose_in_step,
)
from surestep.engine.incident.recent import Recent
from surestep.engine.incident.shares import as_text, can_look_alone, diagnose_share, put_together
from surestep.engine.incident.told import told
from surestep.engine.loop import Loop
from surestep.engine.state import Place
from surestep.engine.step import StepResult
from surestep.record.batches import Packed

Read = Callable[[], tuple[Batch, Tensor | range | None]]


@dataclass(frozen=True)
class Seen:
    """A step that was not finite, and what was found out about it.

    Attributes:
        batch: of the step, as it was read; None where it could not be read again.
        is_own: the batch was given by the user, so it has no place in the data.
        diagnosis: None where there is none.
        text: what is told of it.
        packed: a batch of the user's own that several ranks have shares of, put together.
    """

    batch: Batch | None
    is_own: bool
    diagnosis: Diagnosis | None
    text: str
    packed: Packed | None = None


def look(loop: Loop, result: StepResult, own: Mapping[int, Batch], recent: Recent) -> Seen:
    """Take the step again where it can be, and say what made it not finite."""
    place, given = result.before, own.get(result.before.step)
    batch = given
    try:
        batch = batch_at(loop.feed, place) if given is None else loop.feed.move(given)
        index = None if given is not None else index_at(loop.feed, place.epoch)
        found = diagnose(loop.parts, batch, index=index)
    # The user's code runs in it, which may raise anything; the run's own error must be told.
    except Exception as error:
        text = f"What made it is not known: taking the step again failed ({_first_line(error)})."
        return Seen(batch, given is not None, None, text)
    return Seen(batch, given is not None, found, told(found, recent))


def look_together(loop: Loop, result: StepResult, given: Batch | None, recent: Recent) -> Seen:
    """Let each rank take its share again, and put together what they found.

    With a copy of the model each does so for itself; with parts of it all do so pass by pass. A
    share of the data is not kept, since it is not all of it: a replay reads the whole by its place.
    """
    diagnosis = _together(loop, result, partial(_share, loop, result.before, given))
    if diagnosis is None:
        return left_to_one(loop, given)
    return Seen(None, given is not None, diagnosis, told(diagnosis, recent))


def blame(loop: Loop, result: StepResult, batch: Batch) -> Diagnosis | None:
    """Find what made a step not finite that is skipped, with the batch at hand; None if unknown.

    Reading the batch again would disturb the pass over the data, which goes on after the step.
    """
    place, loop.state.place = loop.state.place, result.before
    try:
        if loop.world.size > 1:
            return _together(loop, result, lambda: (batch, None))
        return diagnose(loop.parts, batch, index=None)
    # The user's code runs in it, which may raise anything; the step is skipped all the same.
    except Exception:
        return None
    finally:
        loop.state.place = place


def _together(loop: Loop, result: StepResult, read: Read) -> Diagnosis | None:
    """Let each rank diagnose its share; None where that cannot be, or none is not finite."""
    parts, plan = loop.parts, loop.plan
    in_step = can_look_in_step(parts, plan)
    if not in_step and not can_look_alone(parts, plan):
        return None
    with loop.world.patiently():
        texts = (_told_in_step if in_step else _told_alone)(loop, result, read)
    return put_together(texts) if texts else None


def _told_alone(loop: Loop, result: StepResult, read: Read) -> list[str]:
    """Return what each rank found by itself."""
    found, failed = None, ""
    try:
        batch, index = read()
        found = diagnose_share(loop.parts, loop.plan, batch, index=index, divisor=result.divisor)
    # The user's code runs in it. Whatever it raises, the other ranks wait for an answer.
    except Exception as error:
        failed = _first_line(error)
    return loop.world.texts(as_text(found, failed))


def _told_in_step(loop: Loop, result: StepResult, read: Read) -> list[str]:
    """Return what the ranks found pass by pass; nothing where they could not."""
    share = None
    with suppress(Exception):  # the user's code reads, and the other ranks wait for an answer
        share = read()
    if loop.world.largest([share is None])[0] or share is None:
        return []
    batch, index = share
    try:
        own = diagnose_in_step(loop.parts, loop.world, batch, index=index, divisor=result.divisor)
    except OutOfStepError as error:
        loop.world.failed(error)  # the others wait within the pass
        return []
    return [] if own is None else loop.world.texts(own)


def _share(loop: Loop, place: Place, given: Batch | None) -> tuple[Batch, Tensor | range | None]:
    if given is not None:
        return loop.feed.move(given), None
    return batch_at(loop.feed, place), index_at(loop.feed, place.epoch)


def left_to_one(loop: Loop, given: Batch | None) -> Seen:
    """Leave what made it to a replay, which reads the whole batch.

    So it is where ranks hold parts of the model, which none can take a step with alone, and where
    each share by itself is finite.
    """
    text = (
        "What made it is looked for in one process, by the replay below: each of "
        f"{loop.world.size} ranks has a share of the batch."
    )
    return Seen(given, given is not None, None, text)


def batch_at(feed: Feed, place: Place) -> Batch:
    """Read the batch of a place again.

    Raises:
        DataError: there is none.
    """
    batches = feed.batches(place.epoch, place.position)
    for batch in batches:
        return batch
    raise DataError(
        f"Epoch {place.epoch + 1} of the training data has no batch at position {place.position}."
    )


def index_at(feed: Feed, epoch: int) -> Tensor | range | None:
    """Return the index of the sample at each position of an epoch; None for a stream."""
    if isinstance(feed.source, Stream):
        return None
    order = feed.order_at(epoch)
    if order is not None:
        return order
    return None if feed.cut.samples is None else range(feed.cut.samples)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
