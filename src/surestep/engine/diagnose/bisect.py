"""Which samples of a batch make a step not finite, each alone."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from surestep.engine.batch import Batch
from surestep.engine.diagnose.select_samples import CannotSplitBatchError, select_samples
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import named_losses

TRIES = 160  # steps that the search may take; each costs at most as much as the one that failed
EACH = 8  # samples that are tried first: where all fail alone, it is none of them in particular
COMPANY = 4  # finite samples that one is tried beside, where none can be tried alone
ALONE, EACH_ALONE = "alone it is not finite", "each alone is not finite"
_COUPLED = "the model or the loss compares samples, so none was tried alone"
BESIDE = f"beside finite samples it is not finite, and without it they are ({_COUPLED})"
EACH_BESIDE = f"each beside finite samples is not finite, and without it they are ({_COUPLED})"
WITHOUT = "with it the step is not finite, and without it it is"
Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SampleRef:
    """A sample of the step.

    Attributes:
        position: in the order of the epoch; of batches of the user's own, the row.
        index: in the data set; None where that is not known.
    """

    position: int
    index: int | None


@dataclass(frozen=True)
class BisectResult:
    """The samples that do it alone.

    Attributes:
        samples: in order; empty where none does, or where it is not known.
        how: how that was found, or why it is not known.
        known: whether the search could be done to its end.
        of: how many samples the step had.
    """

    samples: tuple[SampleRef, ...] = ()
    how: str = ""
    known: bool = True
    of: int = 0

    @property
    def is_specific(self) -> bool:
        """Whether it is a matter of these samples: at most half of the step's do it alone."""
        return len(self.samples) > 0 and (2 * len(self.samples) <= self.of or self.of == 1)


class SampleBisection:
    """Looks for the samples of a batch without which the step is finite.

    Args:
        batch: on the device and transformed.
        loss: counts the items of parts of it.
        is_bad: takes a step on a batch, and says whether it was not finite.
    """

    def __init__(self, batch: Batch, loss: Loss, is_bad: Callable[[Batch], bool]) -> None:
        self.batch = batch
        self.loss = loss
        self.is_bad = is_bad
        self.tries = 0

    def find_individually_bad(self) -> BisectResult:
        """Halve what is not finite until single samples are left."""
        every = self._every()
        first = every[:: max(1, len(every) // EACH)][:EACH]
        if len(every) == 1:
            only = self.batch.samples == 1  # else it is the only one of a rank's share
            return self._found(every, "it is the only one of the step" if only else ALONE)
        if all(self._fails([each]) for each in first):
            return BisectResult(how=f"each of {len(first)} that were tried is not finite alone")
        found: list[tuple[int, int]] = []
        groups = [
            [each for each in every if each[0] == index]
            for index in range(len(self.batch.micro_batches))
        ]
        while groups and self.tries < TRIES:
            group = groups.pop(0)
            if not group or not self._fails(group):
                continue
            if len(group) == 1:
                found.append(group[0])
            else:
                middle = len(group) // 2
                groups = [group[:middle], group[middle:], *groups]
        if groups:
            return self._found(found, f"the search ended after {self.tries} tries", known=False)
        if not found:
            return BisectResult(how="each alone is finite, and several of them together are not")
        return self._found(found, ALONE if len(found) == 1 else EACH_ALONE)

    def in_company(self) -> BisectResult:
        """Halve what is not finite, and try each sample that is left beside finite ones.

        For samples that cannot be tried alone, since the model or the loss compares them. The
        samples of one micro-batch are each other's company.
        """
        guilty: list[tuple[int, int]] = []
        untried = 0
        for index, micro in enumerate(self.batch.micro_batches):
            found, left = self._of_micro_batch([(index, row) for row in range(micro.samples)])
            guilty, untried = guilty + found, untried + left
        if self.tries >= TRIES:
            how = f"the search ended after {self.tries} tries"
            return self._found(guilty, how, known=False)
        if untried and not guilty:
            return BisectResult(
                how="no part of a micro-batch is finite, and the model or the loss compares its "
                "samples, so none can be tried alone",
                known=False,
            )
        if not guilty:
            return BisectResult(
                how="every half of the step is finite, and only all together are not"
            )
        how = BESIDE if len(guilty) == 1 else EACH_BESIDE
        return self._found(guilty, how, known=not untried)

    def _of_micro_batch(self, every: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
        """Return the guilty samples of a micro-batch, and how many could not be tried."""
        finite: list[tuple[int, int]] = []
        singles: list[tuple[int, int]] = []
        groups = [every]
        while groups and self.tries < TRIES:
            group = groups.pop(0)
            if len(group) == 1:
                singles.append(group[0])
            elif not self._fails(group):
                finite += group
            else:
                middle = len(group) // 2
                groups = [group[:middle], group[middle:], *groups]
        company = finite[:COMPANY]
        for pair in combinations(singles, 2):
            if company or self.tries >= TRIES:
                break
            company = [] if self._fails([*pair]) else [*pair]
        if not company:
            return [], len(singles)
        singles = [each for each in singles if each not in company]
        found = [
            each for each in singles if self.tries < TRIES and self._fails(sorted([*company, each]))
        ]
        return found, 0

    def find_by_removal(self, suspects: Rows) -> BisectResult:
        """Leave samples out: those that make the step not finite again when put back did it.

        First all that are suspected, where those are some and not all; then one after another.
        """
        every = self._every()
        names = [(index, row) for index, rows in enumerate(suspects) for row in rows]
        if names and len(names) < len(every) and not self._fails(_but(every, names)):
            rest = _but(every, names)
            guilty = [each for each in names if self._fails(sorted([*rest, each]))]
            if guilty or len(names) > 1:
                together = "without several of them together it is finite, with any one of them too"
                return self._found(guilty, WITHOUT) if guilty else BisectResult(how=together)
        for each in every if len(every) > 1 else ():
            if self.tries >= TRIES:
                return BisectResult(how=f"the search ended after {self.tries} tries", known=False)
            if not self._fails(_but(every, [each])):
                return self._found([each], "without it the step is finite")
        return BisectResult(how="the step is not finite without any one of them either")

    def _every(self) -> list[tuple[int, int]]:
        """List all samples, as (micro-batch, row)."""
        return [
            (index, row)
            for index, micro in enumerate(self.batch.micro_batches)
            for row in range(micro.samples)
        ]

    def _fails(self, group: list[tuple[int, int]]) -> bool:
        rows: list[list[int]] = [[] for _ in self.batch.micro_batches]
        for micro, row in group:
            rows[micro].append(row)
        part = select_samples(self.batch, rows, self.loss)
        if not part.items:  # nothing to learn from: such a batch moves nothing
            return False
        self.tries += 1
        return self.is_bad(part)

    def _found(self, group: list[tuple[int, int]], how: str, *, known: bool = True) -> BisectResult:
        micros = self.batch.micro_batches
        positions = sorted(micros[micro].position + row for micro, row in group)
        return BisectResult(tuple(SampleRef(each, None) for each in positions), how, known)


def _but(every: list[tuple[int, int]], some: list[tuple[int, int]]) -> list[tuple[int, int]]:
    left_out = set(some)
    return [each for each in every if each not in left_out]


def search(
    batch: Batch,
    loss: Loss,
    is_bad: Callable[[Batch], bool],
    *,
    suspects: Rows,
    independent: bool,
) -> BisectResult:
    """Find the samples that make a step not finite.

    Args:
        batch: on the device and transformed.
        loss: of the step.
        is_bad: takes a step on a batch, and says whether it was not finite.
        suspects: rows of each micro-batch that were not finite first.
        independent: a sample means the same without the others.
    """
    looking = SampleBisection(batch, loss, is_bad)
    try:
        if independent and all(each.is_separable for _, each in named_losses(loss)):
            found = looking.find_individually_bad()
            if found.samples or not any(suspects):
                return found
            other = looking.find_by_removal(suspects)
            return other if other.samples else found
        found = looking.in_company()
        if found.samples or not found.known or not any(suspects):
            return found
        other = looking.find_by_removal(suspects)
        return other if other.samples else found
    except CannotSplitBatchError as error:
        return BisectResult(how=f"the batch cannot be cut into samples: {error}", known=False)
