"""Loss spikes: reported, and if set the run goes back and skips a range of steps."""

import sys
from functools import partial
from typing import Any

from surestep.base.errors import CheckpointError
from surestep.engine.state.loss_spikes import LossSpike
from surestep.engine.state.state import State
from surestep.engine.step.callback import Request, Rollback
from surestep.engine.step.log_point import LogPoint, SkippedStep
from surestep.engine.step.part import Part
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.run_writer import RunWriter
from surestep.trainer.incidents import sample_indices
from surestep.trainer.rank_zero import load_checkpoint, open_verified, run_on_rank_zero
from surestep.trainer.session import Session


class SpikeWatch(Part):
    """Checks the losses of each log point for spikes.

    A rollback is a function of the losses alone, not of where log points and checkpoints are: the
    skipped range starts at the spike, and the steps before it come out the same again. So a run
    that is killed after a rollback and resumes from before it rolls back again.
    """

    def __init__(self, session: Session, recorder: RunWriter) -> None:
        self.session = session
        self.recorder = recorder

    def on_start(self, state: State) -> Request | None:
        """Save the first checkpoint to go back to."""
        goes_back = self.session.plan.on_spike == "rollback"
        return Request.SAVE if goes_back and not state.progress.step else None

    def on_log(self, state: State, point: LogPoint) -> Rollback | None:
        """Report the first spike of a log point; roll back if that is set."""
        spikes = state.spikes.find(point.first_step, point.loss)
        if not spikes:
            return None
        spike = spikes[0]
        self.recorder.event(
            "spike", **spike._asdict(), spikes=len(spikes), **self._batches(point, spikes)
        )
        more = f" ({len(spikes) - 1} more after it)" if len(spikes) > 1 else ""
        text = (
            f"Loss spike: {spike.loss:.4g} in step {spike.step}{more} is {spike.z:.0f} deviations "
            f"above {spike.median:.4g}, the median of the last {spike.n_losses} losses."
        )
        if self.session.plan.on_spike != "rollback":
            self.session.messages.print_line(text)
            return None
        checkpoint, why = self._find(spike)
        if checkpoint is None:
            self.session.messages.print_line(f"{text} {why}")
            return None
        return Rollback(partial(self._go_back, spike, checkpoint, f"{text} {why}".rstrip()))

    def _batches(self, point: LogPoint, spikes: list[LossSpike]) -> dict[str, Any]:
        """Return where the batches of consecutive spikes are, with the one before, in one epoch.

        The update of the step before may have caused the spike.
        """
        loader, size = self.session.loop.loader, self.session.plan.batch_size
        progress = [*point.progress_before, point.progress]
        first = spikes[0].step - point.first_step
        start, positions = progress[first], None
        for index, spike in zip(range(first, len(progress)), spikes, strict=False):
            here, after = progress[index], progress[index + 1]
            if spike.step != point.first_step + index or here.epoch != start.epoch:
                break
            end = after.position
            if after.epoch != here.epoch:
                end = min(here.position + size, loader.count_positions(here.epoch) or sys.maxsize)
            if end > here.position:  # not a batch passed to train_step()
                positions = (max(0, start.position - size), end)
        skip = SkippedStep(spikes[0].step, start.epoch, positions, "spike")
        samples = sample_indices(loader, skip)
        return {"epoch": start.epoch, "positions": positions, "samples": samples}

    def _find(self, spike: LossSpike) -> tuple[str | None, str]:
        """Return the checkpoint to go back to, and why it is not a newer one, or there is none."""
        session, limit = self.session, self.session.plan.max_rollbacks
        if session.state.spikes.rollbacks >= limit:
            return None, f"max_rollbacks={limit} is used up: the run continues."
        session.saving.collect(wait=True)  # the newest checkpoint may still be written
        find = partial(self._find_before, spike)
        checkpoint, problems = run_on_rank_zero(session.loop.world, find)
        if checkpoint is None:
            problems = [*problems, "No checkpoint is from before it: the run continues."]
        return checkpoint, " ".join(problems)

    def _go_back(self, spike: LossSpike, checkpoint: str, text: str) -> None:
        """Load a checkpoint of before a spike; skip the steps around it from now on."""
        session, limit = self.session, self.session.plan.max_rollbacks
        before = session.state.spikes
        with session.loop.context.train_modes.for_weights():
            load_checkpoint(session.loop.world, open_verified(checkpoint), session.state)
        now = session.state.spikes
        now.skipped_steps, now.rollbacks = before.skipped_steps, before.rollbacks
        first, last = now.skip_after(spike)
        session.loop.world.all_reduce_sum([0])  # all ranks have read before any is deleted
        self.recorder.delete_from_step(first)
        step, count = session.state.progress.step, now.rollbacks
        self.recorder.event("rollback", step=step, skipped_steps=[first, last], rollback=count)
        session.messages.print_line(
            f"{text} Going back to step {step}; steps {first} to {last} are skipped "
            f"(rollback {count} of {limit})."
        )

    def _find_before(self, spike: LossSpike) -> tuple[str | None, list[str]]:
        """Verify and return the newest good checkpoint before a spike, and why newer are not."""
        problems: list[str] = []
        for path in reversed(list_checkpoints(self.recorder.checkpoints)):
            if step_of(path) < spike.step - 1:
                try:
                    return str(open_checkpoint(path).path), problems
                except CheckpointError as error:
                    problems.append(str(error))
        return None, problems
