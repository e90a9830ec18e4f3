"""What four ranks run as well as two: what depends on their number.

This is how samples, streams, sums and requests are split over ranks, and how state is resumed on
another number. A clipped norm, an average, a rejected metric or a logged line is the same on two.
"""

from collections.abc import Iterable

CASES = ("adamw", "masked", "tiny weights")  # the cells of DDP have micro-batches and SGD
KINDS = (
    "stream",
    "own state",
    "own state, gone on",
    "own transform",
    "WGAN-GP",
    "logs",
    "measured",
)
ON_FOUR = {
    *(*CASES, *KINDS, "half of a stream", "poisoned on two", "stopped", "half", "gone on"),
}


def on_ranks(names: Iterable[str]) -> list[tuple[int, str]]:
    """Pair each case with the numbers of ranks that run it."""
    names = list(names)
    return [(2, name) for name in names] + [(4, name) for name in names if name in ON_FOUR]
