"""When a step was not finite: why is found out, the step is kept, and the error says both."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from surestep.base.errors import DataError, NonFiniteError, SurestepError
from surestep.engine.data.batch import Batch
from surestep.engine.data.feed import Feed
from surestep.engine.data.passes import Stream
from surestep.engine.incident.diagnose import Diagnosis, diagnose
from surestep.engine.incident.recent import Recent
from surestep.engine.incident.shares import (
    as_text,
    can_look_alone,
    diagnose_share,
    put_together,
)
from surestep.engine.incident.told import told
from surestep.engine.log_point import SKIP, what_failed
from surestep.engine.loop import Loop
from surestep.engine.state import Place
from surestep.engine.step import StepResult
from surestep.record.batches import Packed
from surestep.record.incident import folder_of, write_incident
from surestep.record.recorder import Recorder
from surestep.record.run import Run


class Incidents:
    """Makes the error of a step that was not finite say why, and keeps the step; see `Loop`.

    Args:
        loop: whose state is then the one before the step.
        recorder: of the run folder.
        save: writes a checkpoint of that state, where there is none; returns its folder.
        say: shows a line to whoever watches.

    Attributes:
        keeps: an incident is written; not of a rehearsal, whose folder does not stay.
    """

    def __init__(
        self, loop: Loop, recorder: Recorder, save: Callable[[], Path], say: Callable[[str], None]
    ) -> None:
        self.loop = loop
        self.recorder = recorder
        self.save = save
        self.say = say
        self.keeps = True
        self.recent = Recent()
        loop.on_log.append(self.recent)
        loop.explain = self

    def __call__(
        self, error: NonFiniteError, result: StepResult, own: Mapping[int, Batch]
    ) -> NonFiniteError:
        """Save first, since the user's code runs again in what comes then."""
        world, given = self.loop.world, own.get(result.before.step)
        alone = world.size == 1
        together = given is None and can_look_alone(self.loop.parts, self.loop.plan)
        if alone or (together and world.is_first):
            self.say(f"Step {error.step} was not finite: it is taken again to find out why.")
        where: Path | str = ""
        try:
            checkpoint = self.save() if self.keeps else Path()
        except SurestepError as failed:
            checkpoint, where = Path(), f"No incident is kept: {failed}"
        if alone:
            seen = look(self.loop, result, own, self.recent)
        elif together:
            seen = look_together(self.loop, result, self.recent)
        else:
            seen = left_to_one(self.loop, given)
        if self.keeps and not where:
            try:
                where = self._kept(result, seen, checkpoint)
                self.recorder.event("incident", step=result.step, path=f"incidents/{where.name}")
            except SurestepError as failed:
                where = f"No incident is kept: {failed}"
        return explained(
            error, result, seen, where, recipe=bool(self.recorder.run.config["recipe"])
        )

    def _kept(self, result: StepResult, seen: "Seen", checkpoint: Path) -> Path:
        """Write the incident, on the first rank; return its folder."""
        run = self.recorder.run
        if not self.loop.world.is_first:
            return folder_of(run.path, result.step)
        return keep(run, result, seen, checkpoint, self.recent)


@dataclass(frozen=True)
class Seen:
    """A step that was not finite, and what was found out about it.

    Attributes:
        batch: of the step, as it was read; None where it could not be read again.
        is_own: the batch was given by the user, so it has no place in the data.
        diagnosis: None where there is none.
        text: what is told of it.
    """

    batch: Batch | None
    is_own: bool
    diagnosis: Diagnosis | None
    text: str


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


def look_together(loop: Loop, result: StepResult, recent: Recent) -> Seen:
    """Let each rank take its share again for itself, and put together what they found.

    The batch is not kept, since a share is not all of it: a replay reads the whole by its place.
    """
    place, world = result.before, loop.world
    found, failed = None, ""
    try:
        batch, index = batch_at(loop.feed, place), index_at(loop.feed, place.epoch)
        found = diagnose_share(loop.parts, loop.plan, batch, index=index, divisor=result.divisor)
    # The user's code runs in it. Whatever it raises, the other ranks wait for an answer.
    except Exception as error:
        failed = _first_line(error)
    with world.patiently():
        diagnosis = put_together(world.texts(as_text(found, failed)))
    if diagnosis is None:
        return left_to_one(loop, None)
    return Seen(None, False, diagnosis, told(diagnosis, recent))


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


def keep(run: Run, result: StepResult, seen: Seen, checkpoint: Path, recent: Recent) -> Path:
    """Write the incident of a step; return its folder.

    Raises:
        RunError: the disk is full or cannot be written.
    """
    packed = Packed(() if seen.batch is None else seen.batch.micro_batches)
    norms: dict[str, Any] = {"total": None, "each": {}}
    if result.norms is not None:
        each = result.norms.each.tolist()
        norms["total"] = float(result.norms.total)
        norms["each"] = list(zip(result.norms.names, each, strict=True))
    record = {
        "checkpoint": checkpoint.name,
        "asked": run.config,
        "place": result.before._asdict(),
        "is_own": seen.is_own,
        "loss": None if result.loss_sum is None else float(result.loss_sum) / result.divisor,
        "grad_norm": norms["total"],
        "norms": norms["each"],
        "items": result.items,
        "samples": result.samples,
        "text": seen.text,
        "diagnosis": None if seen.diagnosis is None else asdict(seen.diagnosis),
        "before": [each._asdict() for each in recent.steps],
        "batch": packed.record if seen.batch is not None else None,
        "not_kept": packed.lost,
    }
    return write_incident(run.path, result.step, record, packed.tensors)


def explained(
    error: NonFiniteError, result: StepResult, seen: Seen, incident: Path | str, *, recipe: bool
) -> NonFiniteError:
    """Return the error that tells why the step was not finite, and how to take it again.

    Args:
        error: as the log point made it.
        result: of the step.
        seen: what was found out.
        incident: its folder, or why there is none; empty where none is to be kept.
        recipe: the run can be built again by its recipe.
    """
    found = seen.diagnosis
    advice = f"To go on over such steps, say {SKIP}"
    if found is not None and found.samples.in_particular:
        indices = [each.index for each in found.samples.samples]
        if None not in indices:
            typed = " ".join(map(str, indices))
            advice += (
                f"; to leave samples out, --skip-samples {typed} (skip_samples={indices} in Python)"
            )
    elif found is not None and found.samples.known:
        advice = f"Lower optim.lr, or look at the weights. {advice}"
    where = str(incident)
    if isinstance(incident, Path):
        typed = f"surestep replay {shlex.quote(where)}"
        where = f"Take it again with: {typed if recipe else f'surestep.replay({where!r}, task)'}"
    head = what_failed(result, error.loss, error.parameters)
    at = f"epoch {result.epoch + 1} at position {result.before.position}"
    told = NonFiniteError(
        f"{head} {seen.text} The state is the one before it, in {at}. {advice}. {where}".strip(),
        step=error.step,
        loss=error.loss,
        parameters=error.parameters,
    )
    told.incident = str(incident) if isinstance(incident, Path) else None
    if found is not None:
        if found.cause is not None:
            told.module, told.operation = found.cause.module, found.cause.operation
        told.positions = tuple(each.position for each in found.samples.samples)
        indices = [each.index for each in found.samples.samples]
        told.samples = tuple(each for each in indices if each is not None)
    return told


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
