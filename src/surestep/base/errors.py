"""The errors that surestep raises."""

import difflib
from collections.abc import Iterable


class SurestepError(Exception):
    """Base of all errors; the message says what went wrong and what to type instead."""


class ConfigError(SurestepError):
    """An option is invalid, or two options contradict each other."""


class TaskError(SurestepError):
    """The model, loss, metrics or optimizer do not fit each other."""


class DataError(SurestepError):
    """The data cannot be trained on."""


class NoTargetsError(DataError):
    """Data has no targets that the outputs could be compared with; it can be predicted."""


class WorkerError(DataError):
    """A data worker crashed or was killed. The run can be resumed."""


class RecipeError(SurestepError):
    """A recipe cannot be found, read or called."""


class RunError(SurestepError):
    """A run folder is locked by another process, is missing, or has a different config."""


class StatusWriteError(RunError):
    """The final status of a run could not be written; its saved checkpoints are intact."""


class CheckpointError(SurestepError):
    """A checkpoint is missing, unreadable, or does not fit the model."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint fails verification; an older one may be valid."""


class ParallelError(SurestepError):
    """The ranks of a run cannot connect to each other, or disagree."""


class OutOfMemoryError(SurestepError):
    """A step needs more memory than is available; the run folder has a memory report."""


class Preempted(SurestepError):
    """SIGTERM, SIGUSR1 or SIGHUP stopped the run, which can be resumed.

    If it arrived in `fit()`, the last step is saved.

    Attributes:
        reason: "SIGTERM", "max_time" or what else stopped it.
        is_printed: whether the message was printed when it was raised.
    """

    def __init__(self, message: str, *, reason: str = "", is_printed: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.is_printed = is_printed


class NonFiniteError(SurestepError):
    """A loss or gradient is not finite; the weights and the optimizer are those before that step.

    Attributes:
        step: the first step that was not finite, counted from 1.
        loss: its loss.
        parameters: names of the parameters whose gradient was not finite.
        module: name of the module that produced the first non-finite value; "" is the model
            itself. None if no module produced it, or if it is not known.
        operation: torch's name of the operation that produced it; None if it is not known.
        samples: dataset indices of the samples that cause it by themselves.
        positions: positions of these samples in the epoch.
        incident: folder from which the step can be replayed; None if there is none.
    """

    module: str | None = None
    operation: str | None = None
    samples: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    incident: str | None = None

    def __init__(self, message: str, *, step: int, loss: float, parameters: list[str]) -> None:
        super().__init__(message)
        self.step = step
        self.loss = loss
        self.parameters = parameters


_MAX_LISTED = 60  # names that a message lists


def suggest_names(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a sentence for the end of an error message: which known names are close to `name`."""
    known = list(known)
    close = sorted(
        (option for option in known if option.endswith(f".{name}")),
        key=lambda option: (
            not option.startswith("optim.")
        ),  # optim.lr is meant more often than others
    ) or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(repr(prefix + each) for each in close)}?"
    if not known:
        return "There are none here."
    if len(known) > _MAX_LISTED:
        nearest = difflib.get_close_matches(name, known, n=5, cutoff=0.0)
        return f"The nearest of {len(known)}: {', '.join(prefix + each for each in nearest)}."
    return f"Known: {', '.join(prefix + each for each in known)}."
