"""Which samples are skipped: those that are asked to be, and those of steps that moved nothing."""

from pathlib import Path

from surestep.config.config import Config
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.exclude_samples import excluded_samples
from surestep.engine.data.stream import is_stream
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.step.log_point import SkippedStep
from surestep.engine.task.task import Task
from surestep.record.run_writer import RunWriter
from surestep.record.skipped_samples import read_samples


def read_excluded_samples(task: Task, config: Config) -> ExcludedSamples | None:
    """Return which samples of the training data are left out; None is none of them.

    Raises:
        ConfigError: they cannot be left out, or the file that names them cannot be read.
    """
    said = config.exclude_samples
    if not said or is_stream(task.train):  # the table of options refuses a stream
        return None
    if isinstance(said, str):
        return excluded_samples(task, read_samples(Path(said)), said)
    return excluded_samples(task, said, "")


def record_skips(recorder: RunWriter, feed: BatchLoader, skips: list[SkippedStep]) -> None:
    """Write steps that moved nothing into the events, with the indices of their samples."""
    for skip in skips:
        recorder.skipped(skip, sample_indices(feed, skip))


def sample_indices(feed: BatchLoader, skip: SkippedStep) -> list[int] | None:
    """Return the indices of the samples that did it, or of all in the step where none is known.

    None for a stream, or a batch of the user's own.
    """
    if skip.positions is None or isinstance(feed.source, StreamLoader):
        return None
    order = feed.epoch_order(skip.epoch)
    places = list(range(*skip.positions)) if skip.guilty is None else list(skip.guilty)
    return places if order is None else order[places].tolist()
