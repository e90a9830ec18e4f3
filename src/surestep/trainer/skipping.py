"""Which samples are skipped: those that are asked to be, and those of steps that moved nothing."""

from pathlib import Path

from surestep.base.config import Config
from surestep.engine.data.feed import Feed
from surestep.engine.data.passes import Stream
from surestep.engine.data.skips import Skips, skips_of
from surestep.engine.data.stream import is_stream
from surestep.engine.log_point import Skip
from surestep.engine.task import Task
from surestep.record.recorder import Recorder
from surestep.record.skipped import read_samples


def skips_asked(task: Task, config: Config) -> Skips | None:
    """Return which samples of the training data are left out; None is none of them.

    Raises:
        ConfigError: they cannot be left out, or the file that names them cannot be read.
    """
    said = config.skip_samples
    if not said or is_stream(task.train):  # the table of options refuses a stream
        return None
    if isinstance(said, str):
        return skips_of(task, read_samples(Path(said)), said)
    return skips_of(task, said, "")


def record_skips(recorder: Recorder, feed: Feed, skips: list[Skip]) -> None:
    """Write steps that moved nothing into the events, with the indices of their samples."""
    for skip in skips:
        recorder.skipped(skip, samples_of(feed, skip))


def samples_of(feed: Feed, skip: Skip) -> list[int] | None:
    """Return the indices of the samples that did it, or of all in the step where none is known.

    None for a stream, or a batch of the user's own.
    """
    if skip.positions is None or isinstance(feed.source, Stream):
        return None
    order = feed.order_at(skip.epoch)
    places = list(range(*skip.positions)) if skip.guilty is None else list(skip.guilty)
    return places if order is None else order[places].tolist()
