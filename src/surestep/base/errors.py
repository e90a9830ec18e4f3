"""The errors users meet.

SurestepError
├── ConfigError       an option, or two of them together, cannot be kept
├── TaskError         the model, loss or metrics do not fit each other
├── DataError         the data cannot be trained on
│   └── WorkerError   a data worker died; the run can be resumed
├── RecipeError       a recipe file cannot be used
├── RunError          a run folder is locked, missing, or belongs to another config
│   └── StatusWriteError  the status of an ended run could not be written; its checkpoints are there
├── CheckpointError   a checkpoint is missing or does not fit
│   └── CorruptCheckpointError  it is not what was written; another may be valid
├── ParallelError     the processes of a run do not come together, or do not agree
├── OutOfMemoryError  a step needs more memory than there is
├── Preempted         a signal stopped the run, which can be resumed
└── NonFiniteError    the loss or a gradient stopped being finite
"""

import difflib
from collections.abc import Iterable


class SurestepError(Exception):
    """What went wrong, why it matters, and what to type instead."""


class ConfigError(SurestepError):
    """An option, or two of them together, cannot be kept."""


class TaskError(SurestepError):
    """The model, loss, metrics or optimizer do not fit each other."""


class DataError(SurestepError):
    """The data cannot be trained on."""


class WorkerError(DataError):
    """A data worker died: it was killed, or crashed. The run can be resumed."""


class RecipeError(SurestepError):
    """A recipe cannot be found, read or called."""


class RunError(SurestepError):
    """A run folder is held by somebody, is missing, or belongs to another config."""


class StatusWriteError(RunError):
    """How a run ended could not be written; what it saved is there."""


class CheckpointError(SurestepError):
    """A checkpoint is missing, unreadable, or does not fit the model."""


class CorruptCheckpointError(CheckpointError):
    """A checkpoint is not what was written; one that is older may be good."""


class ParallelError(SurestepError):
    """The processes of a run do not come together, or do not agree."""


class OutOfMemoryError(SurestepError):
    """A step needs more memory than there is; what was held is in the run folder."""


class Preempted(SurestepError):
    """SIGTERM, SIGUSR1 or SIGHUP stopped the run after a step, which is saved: it can go on."""


class NonFiniteError(SurestepError):
    """A loss or gradient stopped being finite; the state is the one before that step.

    Attributes:
        step: the first step that was not finite, counted from 1.
        loss: its loss.
        parameters: names of the parameters whose gradient was not finite.
        module: in which the first value was made that was not finite, by name; "" is the model
            itself. None where it was in none of its modules, or is not known.
        operation: what made that value, as torch calls it; None where that is not known.
        samples: indices in the data set of the samples that do it alone.
        positions: their positions in the order of the epoch.
        incident: the folder from which the step can be taken again; None where there is none.
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


_MANY = 60  # names that a message lists; nobody reads more


def suggest_names(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Say which of the known names are close to `name`, as the end of an error message."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(repr(prefix + each) for each in close)}?"
    if not known:
        return "There are none here."
    if len(known) > _MANY:
        nearest = difflib.get_close_matches(name, known, n=5, cutoff=0.0)
        return f"The nearest of {len(known)}: {', '.join(prefix + each for each in nearest)}."
    return f"Known: {', '.join(prefix + each for each in known)}."
