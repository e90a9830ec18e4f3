"""Loss spikes in a run: told, and where it is asked the run goes back and leaves a stretch out."""

import sys
from typing import Any

from surestep.base.errors import CheckpointError
from surestep.engine.state.loss_spikes import LossSpike
from surestep.engine.step.log_point import LogPoint, SkippedStep
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.run_writer import RunWriter
from surestep.trainer.incidents import sample_indices
from surestep.trainer.rank_zero import open_verified, run_on_rank_zero
from surestep.trainer.session import Session


class SpikeWatch:
    """Looks at the losses of each log point.

    A run that goes back is a function of its losses alone, wherever the log points and checkpoints
    are: the stretch that is left out begins at the spike, and what is done again up to there comes
    out the same. So a run that is killed after it went back, and goes on from before, goes back
    again.
    """

    def __init__(self, session: Session, recorder: RunWriter) -> None:
        self.session = session
        self.recorder = recorder

    def __call__(self, point: LogPoint) -> None:
        """Look at the losses; tell of the first spike, and go back where that is asked."""
        spikes = self.session.state.spikes.find(point.first_step, point.loss)
        if not spikes:
            return
        spike, plan = spikes[0], self.session.plan
        self.recorder.event(
            "spike", **spike._asdict(), spikes=len(spikes), **self._suspects(point, spikes)
        )
        after = len(spikes) - 1
        more = f" ({after} more after it)" if after else ""
        said = (
            f"Loss spike: {spike.loss:.4g} in step {spike.step}{more} is {spike.z:.0f} deviations "
            f"above {spike.median:.4g}, the median of the last {spike.n_losses} losses."
        )
        if plan.on_spike == "rollback":
            said = f"{said} {self._go_back(spike)}"
        self.session.print_line(said)

    def _suspects(self, point: LogPoint, spikes: list[LossSpike]) -> dict[str, Any]:
        """Return where the batches are of the spikes that follow on one another.

        And that of the step before them, whose update may have done it; all of one epoch.
        """
        feed, size = self.session.loop.loader, self.session.plan.batch_size
        places = [*point.progress_before, point.progress]
        index = spikes[0].step - point.first_step
        place, positions = places[index], None
        for each, spike in zip(range(index, len(places)), spikes, strict=False):
            here, after = places[each], places[each + 1]
            if spike.step != point.first_step + each or here.epoch != place.epoch:
                break
            end = after.position
            if after.epoch != here.epoch:
                end = min(here.position + size, feed.layout.samples or sys.maxsize)
            if end > here.position:  # a batch of the user's own has no place
                positions = (max(0, place.position - size), end)
        skip = SkippedStep(spikes[0].step, place.epoch, positions, "spike")
        return {"epoch": place.epoch, "positions": positions, "samples": sample_indices(feed, skip)}

    def _go_back(self, spike: LossSpike) -> str:
        """Go back to the newest good checkpoint before a spike; say so, or why not."""
        session, most = self.session, self.session.plan.max_rollbacks
        known = session.state.spikes
        if known.rollbacks >= most:
            return f"max_rollbacks={most} is used up: the run goes on."
        session.saving.collect(wait=True)  # the newest checkpoint may still be written
        found, skipped = self._newest_before(spike)
        if found is None:
            return " ".join([*skipped, "No checkpoint is from before it: the run goes on."])
        session.rollback(found)
        now = session.state.spikes
        now.skipped_steps, now.rollbacks = known.skipped_steps, known.rollbacks
        begin, end = now.skip_after(spike)
        session.loop.world.all_reduce_sum([0])  # none is deleted before all ranks have read theirs
        self.recorder.delete_from_step(begin)
        step = session.state.progress.step
        self.recorder.event(
            "rollback", step=step, skipped_steps=[begin, end], rollback=now.rollbacks
        )
        told = f"Going back to step {step}; steps {begin} to {end} are left out"
        return " ".join([*skipped, f"{told} (rollback {now.rollbacks} of {most})."])

    def _newest_before(self, spike: LossSpike) -> tuple[CheckpointReader | None, list[str]]:
        """Return the newest good checkpoint before a spike, and why newer ones are passed over.

        The first rank looks for it; all of them verify it, and open the one that it found.
        """
        world = self.session.loop.world

        def look() -> tuple[CheckpointReader | None, list[str]]:
            skipped: list[str] = []
            for path in reversed(list_checkpoints(self.recorder.checkpoints)):
                if step_of(path) < spike.step - 1:
                    try:
                        return open_checkpoint(path), skipped
                    except CheckpointError as error:
                        skipped.append(str(error))
            return None, skipped

        return run_on_rank_zero(
            world,
            look,
            tell=lambda found: (None if found[0] is None else str(found[0].path), found[1]),
            follow=lambda said: (said[0] and open_verified(said[0]), said[1]),
        )
