"""The trackers of a run: one thread each, on rank 0, until the session closes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from surestep.base.errors import ConfigError
from surestep.base.text import describe_value
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.stop_signals import CTRL_C
from surestep.engine.plan.plan import Plan
from surestep.engine.step.loop import Loop
from surestep.record.run_writer import RunWriter
from surestep.tracking.tracker import Tracker
from surestep.trainer.messages import Messages
from surestep.trainer.model_template import ModelTemplate
from surestep.trainer.resume import ResumeDecision

if TYPE_CHECKING:
    from surestep.tracking.follower import Follower


def check_trackers(trackers: Any) -> None:
    """Check that these are objects of trackers."""
    if isinstance(trackers, str) or not isinstance(trackers, Sequence):
        raise ConfigError(
            f"trackers is {describe_value(trackers)}, not a list. Pass objects: "
            "trackers=[MyTracker()], or names: Config(logging={'trackers': ['tensorboard']})."
        )
    for tracker in trackers:
        if not isinstance(tracker, Tracker):
            raise ConfigError(
                f"trackers has {describe_value(tracker)}, not an object of a surestep.Tracker. "
                "Derive your class from it, and pass an object: trackers=[MyTracker()]."
            )


class TrackerThreads:
    """The trackers of a run, made before its model is wrapped.

    Args:
        plan: names trackers.
        own: objects of the caller.
        model: as it was built; copied without its weights if a tracker uses it.
        world: only its rank 0 has trackers.
        decision: there are no trackers if the run is finished.
        recorder: of the run folder, which they read.

    Attributes:
        followers: the threads.
    """

    def __init__(
        self,
        plan: Plan,
        own: Sequence[Tracker],
        model: nn.Module,
        world: Communicator,
        decision: ResumeDecision,
        recorder: RunWriter,
    ) -> None:
        self.followers: list[Follower] = []
        self._recorder = recorder
        if not world.is_first or decision.finished or not (plan.logging_trackers or own):
            return
        # Most runs have no tracker.
        from surestep.tracking import follower
        from surestep.tracking.registry import tracker_class

        trackers = [*(tracker_class(name)() for name in plan.logging_trackers), *own]
        is_needed = any(tracker.uses_model for tracker in trackers)
        template = ModelTemplate(model) if is_needed else None
        load = None if template is None else lambda: template.load(recorder.run)
        folder = recorder.folder.absolute()
        self.followers = [
            follower.Follower(follower.Delivery(folder, tracker, load_model=load))
            for tracker in trackers
        ]

    def start(self) -> None:
        """Let each tracker follow the events of the run."""
        for follower in self.followers:
            follower.start()

    def finish(self, loop: Loop, messages: Messages) -> None:
        """Wait for the trackers as long as the option says, and record what they lack."""
        if not self.followers:
            return
        from surestep.tracking.follower import STALLED_S, finish_all

        wait = loop.plan.logging_tracker_wait
        limit_s = 0.0 if wait is None else wait.amount * 60
        if loop.requests.interrupted not in ("", CTRL_C):  # a cluster kills the process soon
            limit_s = min(limit_s, STALLED_S)
        show, notify = messages.display, messages.notify
        lacking = finish_all(self.followers, show, limit_s=limit_s, notify=notify)
        if lacking:
            self._recorder.amend_status(trackers=lacking)
