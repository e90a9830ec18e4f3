"""The trackers of a run: one thread each, on rank 0, until the session closes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError
from surestep.base.text import describe_value
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.plan.plan import Plan
from surestep.tracking.follower import Delivery, Follower
from surestep.tracking.registry import tracker_class
from surestep.tracking.tracker import Tracker
from surestep.trainer.model_template import ModelTemplate
from surestep.trainer.resume import ResumeDecision
from surestep.trainer.session import Session


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
    """

    def __init__(
        self,
        plan: Plan,
        own: Sequence[Tracker],
        model: nn.Module,
        world: Communicator,
        decision: ResumeDecision,
    ) -> None:
        is_used = world.is_first and not decision.finished
        by_name = [tracker_class(name)() for name in plan.logging_trackers] if is_used else []
        self._trackers = [*by_name, *own] if is_used else []
        is_needed = any(tracker.uses_model for tracker in self._trackers)
        self._template = ModelTemplate(model) if is_needed else None

    def start(self, session: Session) -> None:
        """Let each tracker follow the events of the run."""
        load = None if self._template is None else partial(self._template.load, session.run)
        for tracker in self._trackers:
            follower = Follower(Delivery(session.run.path.absolute(), tracker, load_model=load))
            follower.start()
            session.loop.notices.append(follower.notice)
            session.at_end(partial(follower.close, session.print_line))
