"""SS505: class indices for which the model has no output."""

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.trainer.review.data_case import DataCase

_SHOWN = 5  # samples in a message


def find(data: DataCase) -> Iterator[Problem]:
    """Find class indices for which the model has no output."""
    if data.classes is None:
        return
    for split in (data.train, *data.others):
        if split.targets is None or len(split.targets) != 1 or split.targets[0].is_floating_point():
            continue
        (targets,) = split.targets
        is_wrong = (targets < 0) | (targets >= data.classes)
        is_wrong &= targets != data.ignored_class
        wrong = is_wrong.reshape(len(split.rows), -1).any(1).nonzero().flatten().tolist()
        if not wrong:
            continue
        values = targets[is_wrong].unique().tolist()
        samples = [split.rows[row] for row in wrong]
        shown = ", ".join(map(str, samples[:_SHOWN]))
        yield Problem(
            f"The {split.name} data has targets from {values[0]} to {values[-1]}, and the model "
            f"has outputs for the classes 0 to {data.classes - 1}: {len(samples)} of "
            f"{len(split.rows)} samples that were read, such as {shown}.",
            {"part": split.name, "samples": samples[:100], "classes": data.classes},
            "Count the classes from 0, give the model one output for each, or set ignore_index.",
        )
