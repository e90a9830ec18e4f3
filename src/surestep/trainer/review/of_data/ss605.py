"""SS605: samples and groups of the training data in other sets."""

from collections.abc import Iterator

from surestep.doctor.limits import DUPLICATE_SHARE
from surestep.doctor.problem import Problem
from surestep.doctor.wording import list_names
from surestep.trainer.review.data_case import DataCase
from surestep.trainer.review.duplicates import find_duplicates, is_same

_FEWEST = 2  # samples in both
_SHOWN = 20  # pairs in the evidence


def find(data: DataCase) -> Iterator[Problem]:
    """Find sets with samples of the training data."""
    is_ready = data.loop.loader.is_ready
    equal = [split.name for split in data.others if is_same(data.train, split)]
    if same := [*data.same, *equal]:
        count = "" if data.train.count is None else f"{data.train.count} "
        yield Problem(
            f"The {_describe(same)} has the same {count}{'batches' if is_ready else 'samples'} as "
            "the training data.",
            {"parts": same, "samples": data.train.count},
        )
    for split in data.others:
        found = None if split.name in same else find_duplicates(data.train, split)
        if found is None or len(found.pairs) < _FEWEST or found.share < DUPLICATE_SHARE:
            continue
        row, of_train = found.pairs[0]
        how = "is also" if found.is_exact else "is nearly equal to a sample"
        start = f"About {found.share:.0%} of the {_describe([split.name])} {how} in"
        if split.share is None or data.train.share is None:  # the others may be unlike those read
            start = f"Samples of the {_describe([split.name])} are also in"
        yield Problem(
            f"{start} the training data: of {len(split.rows)} samples that were read, "
            f"{len(found.pairs)}, such as sample {row} there and sample {of_train} of the "
            "training data.",
            {
                "part": split.name,
                "share": found.share,
                "read": len(split.rows),
                "exact": found.is_exact,
                "pairs": [list(pair) for pair in found.pairs[:_SHOWN]],
            },
        )
    yield from _inspect_groups(data)


def _inspect_groups(data: DataCase) -> Iterator[Problem]:
    """Find sets with samples of groups that are in the training data too."""
    own, others = data.read_origins("groups")
    trained = set(own)
    for name, groups in others.items():
        shared = [group for group in dict.fromkeys(groups) if group in trained]
        if not shared:
            continue
        samples = sum(group in trained for group in groups)
        yield Problem(
            f"{len(shared)} of the {len(set(groups))} groups of the {_describe([name])} are in the "
            f"training data too, such as {shared[0]}: {samples} of its {len(groups)} samples.",
            {"part": name, "groups": len(shared), "samples": samples, "count": len(groups)},
            fix="Split by groups, such as with sklearn.model_selection.GroupShuffleSplit.",
        )


def _describe(names: list[str]) -> str:
    return f"{'test' if names == ['test'] else 'validation'} data {list_names(names)}"
