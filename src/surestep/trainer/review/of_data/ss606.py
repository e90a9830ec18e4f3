"""SS606: samples of other sets from before the last one of the training data."""

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.trainer.review.data_case import DataCase


def find(data: DataCase) -> Iterator[Problem]:
    """Find sets with samples from before the last one of the training data."""
    own, others = data.read_origins("times")
    for name, times in others.items():
        last = max(own)
        early = sum(time < last for time in times)
        if early:
            kind = "test" if name == "test" else "validation"
            yield Problem(
                f"{early} of {len(times)} samples of the {kind} data {name!r} are from before the "
                f"last sample of the training data, {last}.",
                {"part": name, "early": early, "count": len(times)},
                fix="Split by time: train on the samples before a date, evaluate those after it.",
            )
