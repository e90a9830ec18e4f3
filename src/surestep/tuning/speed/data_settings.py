"""Settings of loading that a DataLoader of the Task has decided."""

from surestep.engine.plan.plan import Plan
from surestep.tuning.speed.knob import NotTried


def check_not_of_loader(plan: Plan, name: str) -> None:
    """Raise NotTried if the Task's DataLoader decides a setting, such as "num_workers"."""
    loader = plan.task_info.loader
    if loader is not None and loader[name] is not None:
        raise NotTried(
            f"Task(train=...) is a DataLoader with {name}={loader[name]!r}: set it there, or pass "
            "the dataset"
        )
