"""When a step was not finite: why is found out, the step is kept, and the error says both."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from surestep.base.errors import NonFiniteError, SurestepError
from surestep.engine.data.batch import Batch
from surestep.engine.incident.in_step import can_look_in_step
from surestep.engine.incident.recent import Recent
from surestep.engine.incident.shares import can_look_alone
from surestep.engine.incident.told import samples_told
from surestep.engine.log_point import SKIP, what_failed
from surestep.engine.loop import Loop
from surestep.engine.step import StepResult
from surestep.record.batch_of_ranks import packed_on_first
from surestep.record.batches import Packed
from surestep.record.incident import folder_of, write_incident
from surestep.record.recorder import Recorder
from surestep.record.run import Run
from surestep.trainer.looking import Seen, blame, left_to_one, look, look_together


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
        loop.blame = self.blame

    def blame(self, result: StepResult, batch: Batch) -> tuple[int, ...] | None:
        """Say why a step is skipped; return the positions of the samples that did it, if known."""
        found = blame(self.loop, result, batch)
        known = found is not None and found.samples.known and found.samples.in_particular
        reason = "which samples did it is not known"
        if found is not None and found.reproduced:
            reason = samples_told(found)
        if self.loop.world.is_first:
            self.say(f"Step {result.step} was not finite and is skipped: {reason.rstrip('.')}.")
        return tuple(each.position for each in found.samples.samples) if found and known else None

    def __call__(
        self, error: NonFiniteError, result: StepResult, own: Mapping[int, Batch]
    ) -> NonFiniteError:
        """Save first, since the user's code runs again in what comes then."""
        world, given = self.loop.world, own.get(result.before.step)
        alone = world.size == 1
        parts, plan = self.loop.parts, self.loop.plan
        together = can_look_alone(parts, plan) or can_look_in_step(parts, plan)
        if alone or (together and world.is_first):
            self.say(f"Step {error.step} was not finite: it is taken again to find out why.")
        where: Path | str = ""
        try:
            checkpoint = self.save() if self.keeps else Path()
        except SurestepError as failed:
            checkpoint, where = Path(), f"No incident is kept: {failed}"
        packed = None if alone or given is None else packed_on_first(world, given.micro_batches)
        if alone:
            seen = look(self.loop, result, own, self.recent)
        elif together:
            seen = look_together(self.loop, result, given, self.recent)
        else:
            seen = left_to_one(self.loop, given)
        seen = replace(seen, packed=packed)
        if self.keeps and not where:
            try:
                where = self._kept(result, seen, checkpoint)
                self.recorder.event("incident", step=result.step, path=f"incidents/{where.name}")
            except SurestepError as failed:
                where = f"No incident is kept: {failed}"
        return explained(
            error, result, seen, where, recipe=bool(self.recorder.run.config["recipe"])
        )

    def _kept(self, result: StepResult, seen: Seen, checkpoint: Path) -> Path:
        """Write the incident, on the first rank; return its folder."""
        run = self.recorder.run
        if not self.loop.world.is_first:
            return folder_of(run.path, result.step)
        return keep(run, result, seen, checkpoint, self.recent)


def keep(run: Run, result: StepResult, seen: Seen, checkpoint: Path, recent: Recent) -> Path:
    """Write the incident of a step; return its folder.

    Raises:
        RunError: the disk is full or cannot be written.
    """
    packed = seen.packed or Packed(() if seen.batch is None else seen.batch.micro_batches)
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
        "batch": packed.record or None,
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
