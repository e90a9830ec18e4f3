"""The errors that surestep raises; all of them are subclasses of SurestepError."""

from surestep.base.errors import (
    CheckpointError,
    ConfigError,
    CorruptCheckpointError,
    DataError,
    NonFiniteError,
    NoTargetsError,
    OutOfMemoryError,
    ParallelError,
    Preempted,
    RecipeError,
    RunError,
    StatusWriteError,
    SurestepError,
    TaskError,
    WorkerError,
)

__all__ = [
    "CheckpointError",
    "ConfigError",
    "CorruptCheckpointError",
    "DataError",
    "NoTargetsError",
    "NonFiniteError",
    "OutOfMemoryError",
    "ParallelError",
    "Preempted",
    "RecipeError",
    "RunError",
    "StatusWriteError",
    "SurestepError",
    "TaskError",
    "WorkerError",
]
