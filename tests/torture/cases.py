"""The dimensions of a killed run, and a short list of cases that covers every pair."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Case:
    """A run: how it loads, what is random in it, and the phase in which it is killed.

    `workers` is the number of workers before and after the kill, as far as the data allows:
    "other" is 2 and then none, and for a stream none and then 1, since 2 would be another order.
    """

    workers: Literal["0", "2", "other"] = "0"
    dropout: bool = True
    augmentation: Literal["none", "torch", "numpy", "random"] = "none"
    accumulation: bool = False
    kill: Literal["step", "boundary", "save", "evaluation"] = "save"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    data: Literal["tensors", "map", "stream"] = "map"
    average: bool = False

    def __str__(self) -> str:
        return "-".join(
            (f"{name}" if value is True else f"no {name}") if isinstance(value, bool) else value
            for name, value in asdict(self).items()
        )


DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "workers": ("0", "2", "other"),
    "dropout": (True, False),
    "augmentation": ("none", "torch", "numpy", "random"),
    "accumulation": (True, False),
    "kill": ("step", "boundary", "save", "evaluation"),
    "precision": ("fp32", "bf16", "fp16"),
    "data": ("tensors", "map", "stream"),
    "average": (True, False),
}
Pair = tuple[tuple[int, Any], tuple[int, Any]]


def product() -> Iterator[Case]:
    """Yield every case."""
    for values in itertools.product(*DIMENSIONS.values()):
        yield Case(*values)


def pairs_of(case: Case) -> set[Pair]:
    """Return the pairs of values that a case holds."""
    return set(itertools.combinations(enumerate(astuple(case)), 2))


def all_pairs() -> set[Pair]:
    """Return every pair of values of two different dimensions."""
    pairs: set[Pair] = set()
    for (i, a), (j, b) in itertools.combinations(enumerate(DIMENSIONS.values()), 2):
        pairs |= {((i, x), (j, y)) for x in a for y in b}
    return pairs


def pairwise(seed: int = 0, candidates: int = 60) -> list[Case]:
    """Return a short list of cases that covers every pair; the same for the same seed.

    Greedy: of some random cases with a pair not yet covered, take the one with most such pairs.
    """
    assert [each.name for each in fields(Case)] == list(DIMENSIONS)
    draw, missing = random.Random(seed), all_pairs()
    cases: list[Case] = []
    while missing:
        first = min(missing, key=repr)
        drawn = [_holding(first, draw) for _ in range(candidates)]
        best = max(drawn, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases


def _holding(pair: Pair, draw: random.Random) -> Case:
    values = [draw.choice(each) for each in DIMENSIONS.values()]
    for index, value in pair:
        values[index] = value
    return Case(*values)
