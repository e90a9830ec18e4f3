"""Loss spikes in a run: told, and where it is asked the run goes back and leaves a stretch out."""

from surestep.base.errors import CheckpointError
from surestep.engine.log_point import LogPoint
from surestep.engine.spikes import WINDOW, Spike
from surestep.record.checkpoint.listing import list_checkpoints, step_of
from surestep.record.recorder import Recorder
from surestep.trainer.session import Session


class SpikeWatch:
    """Looks at the losses of each log point.

    A run that goes back is a function of its losses alone, wherever the log points and checkpoints
    are: the stretch that is left out begins at the spike, and what is done again up to there comes
    out the same. So a run that is killed after it went back, and goes on from before, goes back
    again.
    """

    def __init__(self, session: Session, recorder: Recorder) -> None:
        self.session = session
        self.recorder = recorder

    def __call__(self, point: LogPoint) -> None:
        """Look at the losses; tell of the first spike, and go back where that is asked."""
        spikes = self.session.state.spikes.find(point.first_step, point.loss)
        if not spikes:
            return
        spike, plan = spikes[0], self.session.plan
        place = point.places[spike.step - point.first_step]
        where = {"epoch": place.epoch, "position": place.position, "spikes": len(spikes)}
        self.recorder.event("spike", **spike._asdict(), **where)
        more = f" and {len(spikes) - 1} more losses after it" if len(spikes) > 1 else ""
        said = (
            f"Loss spike: {spike.loss:.4g} in step {spike.step}{more} is {spike.z:.0f} deviations "
            f"above {spike.median:.4g}, the median of the last {WINDOW} losses."
        )
        if plan.on_spike == "rollback":
            said = f"{said} {self._go_back(spike)}"
        self.session.say(said)

    def _go_back(self, spike: Spike) -> str:
        """Go back to the newest good checkpoint before a spike; say so, or why not."""
        session, most = self.session, self.session.plan.max_rollbacks
        known = session.state.spikes
        if known.rollbacks >= most:
            return f"max_rollbacks={most} is used up: the run goes on."
        session.saving.collect(wait=True)  # the newest checkpoint may still be written
        skipped = []
        for path in reversed(list_checkpoints(self.recorder.checkpoints)):
            if step_of(path) >= spike.step - 1:
                continue
            try:
                session.go_back(path)
            except CheckpointError as error:
                skipped.append(str(error))
                continue
            break
        else:
            return " ".join([*skipped, "No checkpoint is from before it: the run goes on."])
        now = session.state.spikes
        now.left_out, now.rollbacks = known.left_out, known.rollbacks
        first, last = now.leave_out(spike)
        self.recorder.drop_from(first)
        step = session.state.place.step
        self.recorder.event("rollback", step=step, left_out=[first, last], rollback=now.rollbacks)
        told = f"Going back to step {step}; steps {first} to {last} are left out"
        return " ".join([*skipped, f"{told} (rollback {now.rollbacks} of {most})."])
