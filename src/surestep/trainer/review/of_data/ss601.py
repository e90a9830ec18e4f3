"""SS601: ordered labels in data that is not shuffled."""

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.engine.data.stream import is_stream
from surestep.trainer.review.data_case import DataCase

_FEWEST = 20  # labels
_FEWER = 4  # times fewer runs of labels than in a random order


def find(data: DataCase) -> Iterator[Problem]:
    """Find labels in runs, one for each class, in data that is read in its order."""
    labels, plan = data.train.labels, data.plan
    is_in_order = plan.data_shuffle is False and data.task.sampler is None
    if labels is None or not is_in_order or len(labels) < max(_FEWEST, plan.batch_size + 1):
        return
    # A stream of measurements has long runs at its start, so all of it must be known.
    if data.train.share is None or plan.data_shuffle_buffer is not None:
        return
    counts = labels.unique(return_counts=True)[1]
    runs = 1 + int((labels[1:] != labels[:-1]).sum())
    number = len(labels)
    at_random = 1 + (number**2 - int((counts**2).sum())) / number
    if runs == len(counts) and len(counts) > 1 and _FEWER * runs <= at_random:
        is_of_stream = is_stream(data.task.train)
        keeps = "a stream" if is_of_stream else "data.shuffle=False"
        yield Problem(
            f"The {number} labels that were read are in {runs} runs, one for each class, and "
            f"{keeps} keeps this order; in a random order they would be in about {at_random:.0f}.",
            {"labels": number, "runs": runs, "at_random": at_random},
            f"Set data.shuffle_buffer={number}." if is_of_stream else "Set data.shuffle=True.",
        )
