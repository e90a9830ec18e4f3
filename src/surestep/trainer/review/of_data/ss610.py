"""SS610: targets of which nearly all are equal."""

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.trainer.review.data_case import DataCase

_FEWEST = 50  # targets
_MOSTLY = 0.98  # of the labels in one class


def find(data: DataCase) -> Iterator[Problem]:
    """Find targets that do not vary, and labels of which nearly all are equal."""
    values, labels = data.train.values, data.train.labels
    if values is None or len(values) < _FEWEST or data.loop.loader.loss.kind == "none":
        return
    if data.train.share is None:  # a stream may be ordered by its targets
        return
    if bool((values == values[0]).all()):
        yield Problem(
            f"All {len(values)} training targets that were read are {values[0].item():g}.",
            {"targets": len(values), "value": values[0].item()},
            "Check which column or folder the targets are read from.",
            "warning",
        )
    elif labels is not None:
        classes, counts = labels.unique(return_counts=True)
        share, usual = float(counts.max()) / len(labels), int(classes[counts.argmax()])
        if share >= _MOSTLY:
            yield Problem(
                f"{share:.1%} of the {len(labels)} training labels that were read are {usual}, so "
                "a model that always answers it has this accuracy.",
                {"share": share, "class": usual, "labels": len(labels)},
                "Compare metrics with that, and measure the rare classes too, such as by F1.",
                "info",
            )
