"""How many samples each epoch has, if the data grows or shrinks during the run."""

from typing import Any

from surestep.base.errors import DataError
from surestep.base.warn import warn
from surestep.engine.data.samplers.basic import BasicOrder
from surestep.engine.plan.batching import BatchLayout, SampleOrder

EPOCH_LENGTHS = "the lengths of epochs"  # the name of their state in a checkpoint


class EpochLengths:
    """How many samples the data had at the start of each epoch.

    Attributes:
        planned: the number when the run began.
        changes: the epochs from which another number counts, with that number.
    """

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.changes: dict[int, int] = {}

    def of(self, epoch: int) -> int:
        """Return the number of samples of an epoch; later ones have as many as the last known."""
        known = [start for start in self.changes if start <= epoch]
        return self.changes[max(known)] if known else self.planned

    def change(self, epoch: int, samples: int) -> None:
        """Note that the data has another number of samples from an epoch on."""
        earlier = {start: count for start, count in self.changes.items() if start < epoch}
        self.changes = {**earlier, epoch: samples}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds; nothing if the data stays as it is."""
        return {"changes": list(map(list, self.changes.items()))} if self.changes else {}

    def load_state_dict(self, saved: Any) -> None:
        """Load what a checkpoint holds."""
        self.changes = {int(epoch): int(samples) for epoch, samples in saved.get("changes", ())}


def check_new_length(samples: int, before: int, order: SampleOrder, layout: BatchLayout) -> None:
    """Check that an epoch can have another number of samples.

    Raises:
        DataError: it has no batch, the order is for the samples before, or ranks may differ.
    """
    now = f"The data had {before} samples in the epoch before, and has {samples} now"
    if layout.drop_last and samples < layout.batch_size:
        raise DataError(
            f"{now}, which is less than one batch. Use drop_last=False, or give it at least "
            f"{layout.batch_size}."
        )
    if not isinstance(order, BasicOrder) or layout.ranks > 1:
        why = f"the order {order.name!r} is for {before}"
        if layout.ranks > 1:
            why = "several ranks would have to agree on it"
        raise DataError(
            f"{now}, but {why}. Start another run with the new data from the last checkpoint of "
            "this one: from_='RUN@last'. Or give all samples, and choose those of each epoch: "
            "Task(sampler=surestep.samplers.custom(function))."
        )


def warn_of_length(part: str, epoch: int, before: int, samples: int) -> None:
    """Warn that data to measure has changed its length."""
    warn(
        f"The {part} data had {before} samples before, and has {samples} now. They count from this "
        "evaluation on: do not compare its values with those before."
    )
