"""A new run that starts from a checkpoint of another: `RUN@STEP`, `RUN@best` or `RUN@last`."""

from typing import Any, NamedTuple

from surestep.base.errors import ConfigError
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.checkpoint_ref import find_checkpoint, is_checkpoint, split_name
from surestep.record.run import Run


class RunParent(NamedTuple):
    """Where a run comes from.

    Attributes:
        run: the other run.
        which: which of its checkpoints, as it was said.
        saved: that checkpoint.
    """

    run: Run
    which: str
    saved: CheckpointInfo

    def as_json(self) -> dict[str, Any]:
        """Return it for the records."""
        return {"run": str(self.run.path.resolve()), "which": self.which, "step": self.saved.step}


def check_branch(text: str) -> None:
    """Check that a text says which checkpoint of a run.

    Raises:
        ConfigError: it does not.
    """
    path, which = split_name(str(text))
    if which is None and not is_checkpoint(path):
        raise ConfigError(
            f"{str(text)!r} says no checkpoint. Say RUN@STEP, RUN@best or RUN@last, such as "
            f"{path}@last."
        )


def find_branch(text: str) -> RunParent:
    """Return the checkpoint that a new run starts from.

    Raises:
        ConfigError: it lies in no run, so that nothing is known of what it was trained by.
        RunError: there is no such run.
        CheckpointError: the run has no such checkpoint; the message lists those it has.
    """
    found = find_checkpoint(text)
    if found.run is None:
        raise ConfigError(
            f"{text} lies in no run, so what it was trained by is not known. Say RUN@STEP; or take "
            "its weights only, by Task(init=...)."
        )
    return RunParent(found.run, str(found.which), found.saved)


def is_fork_of(record: dict[str, Any] | None, text: str) -> bool:
    """Say whether a run, by its record, is the one that `text` branches off."""
    path, which = split_name(text)
    if record is None:
        return False
    if which is None:  # the folder of a checkpoint
        path, which = path.resolve().parent.parent, int(path.name.removeprefix("step-"))
    return record["run"] == str(path.resolve()) and str(which) in (
        record["which"],
        str(record["step"]),
    )
