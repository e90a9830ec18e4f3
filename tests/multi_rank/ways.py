"""The cells of the table: every way to share a step, every cut of a batch, two optimizers.

A way takes all of them on as few ranks as it can, and each cut once on more.

A way adds one row here, and the launches of `test_ranks.py` run its cells among the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from surestep import Task
from surestep.trainer.session import Session
from tests.multi_rank import fsdp, zero
from tests.multi_rank.cases import SGD, data, half, opened, task, trained
from tests.multi_rank.memory import held_bytes
from tests.multi_rank.traffic import traffic_of_a_step


def plain_weights(session: Session) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in session.model.state_dict().items()}


def shown_by_all(session: Session) -> dict[str, Any]:
    """What shows of any way what it is: what a rank holds, and what travels in a step."""
    held = sum(each.numel() for each in session.model.parameters())
    return {"held": held, "traffic": traffic_of_a_step(session)}


@dataclass(frozen=True)
class Way:
    """One way to share a step.

    Attributes:
        options: of the Config.
        ranks: the numbers of ranks it runs on.
        weights: returns the whole weights, on each rank.
        shows: on a rank, after training: what proves that the way is what it says.
        proves: given that and the number of ranks, asserts it.
        tolerance: of law 1, |a - b| / |a| over all weights after 20 steps.
    """

    options: Mapping[str, Any]
    proves: Callable[[Mapping[str, Any], int], None]
    ranks: tuple[int, ...] = (2, 4)
    weights: Callable[[Session], dict[str, Tensor]] = plain_weights
    shows: Callable[[Session], dict[str, Any]] = shown_by_all
    tolerance: float = 1e-6


WHOLE = sum(each.numel() for each in task().build_model().parameters())
# The loss, in one number; and in 9 each the items, the words a rank may say, and the time.
CARGO = 1 + 9 + 2


def _is_ddp(shown: Mapping[str, Any], ranks: int) -> None:
    """A whole copy on each rank; in a step one bucket of gradients is added up, as by plain DDP.

    Within it travel the loss and what the host agrees on: the items as nine digits, whether a rank
    has a request, and the time.
    """
    assert shown["held"] == WHOLE
    assert shown["traffic"] == {"all_reduce": [WHOLE + CARGO]}


def _fsdp(shard: str, ranks: tuple[int, ...] = (2, 4), **more: Any) -> Way:
    options = {"parallel": {"strategy": "fsdp", "shard": shard, **more}}
    return Way(options, fsdp.proves(shard), ranks, fsdp.whole_weights, fsdp.shows(shard))


def shown_by_accelerate(session: Session) -> dict[str, Any]:
    accelerator = session.loop.parts.strategy.accelerator
    told = {"type": str(accelerator.distributed_type), "processes": accelerator.num_processes}
    return {**shown_by_all(session), **told}


def _is_accelerate(shown: Mapping[str, Any], ranks: int) -> None:
    assert shown["type"] == "DistributedType.MULTI_CPU"
    assert shown["processes"] == ranks
    _is_ddp(shown, ranks)


WAYS = {
    "ddp": Way({"parallel": {"strategy": "ddp"}}, _is_ddp),
    "fsdp-full": _fsdp("full"),
    "fsdp-grad_op": _fsdp("grad_op"),
    "fsdp-hybrid": _fsdp("hybrid", (4,), shard_size=2),
    **{
        f"zero-{stage}": Way(
            {"parallel": {"strategy": "deepspeed", "zero_stage": stage}},
            zero.is_stage(stage),
            ranks=(2, 4) if stage == 3 else (2,),
            weights=zero.whole_weights,
            shows=zero.shown_by_engine,
        )
        for stage in range(4)
    },
    "accelerate": Way(
        {"parallel": {"strategy": "accelerate"}}, _is_accelerate, shows=shown_by_accelerate
    ),
}

# Samples of an epoch and the size of a micro-batch, for batches of 20: on 2 ranks 10 a rank.
CUTS: dict[str, tuple[int, int | None]] = {
    "one micro-batch": (100, None),
    "uneven": (100, 3),
    "leftover": (110, 4),
    "an empty rank": (101, None),
}
GOES_ON = ("uneven", "adamw")
ONCE = [
    *(("one micro-batch", "adamw"), ("uneven", "adamw")),
    *(("leftover", "sgd"), ("an empty rank", "sgd")),
]
# What goes on in another way that neither copies: what is cut in one way is cut in the other.
CROSSED = [
    *(("fsdp-full", "zero-1"), ("fsdp-full", "zero-3")),
    *(("zero-1", "fsdp-full"), ("zero-3", "fsdp-full")),
]
OPTIMIZERS: dict[str, dict[str, Any]] = {"adamw": {"lr": 1e-2}, "sgd": SGD}


@dataclass(frozen=True)
class Cell:
    way: str
    cut: str
    optimizer: str

    def run(self, folder: Path, way: Way | None) -> dict[str, Any]:
        """Train 20 steps, or go on up to there; in one process where there is no way."""
        made, options = self._made(way)
        if way is None:
            return trained(folder, made(), **options)

        def shows(session: Session) -> dict[str, Any]:
            return {**way.shows(session), "bytes": held_bytes(session)}

        return trained(folder, made(), weights=way.weights, shows=shows, **options)

    def half(self, folder: Path, way: Way | None) -> None:
        """Stop after 7 steps with a checkpoint, written while the eighth is taken."""
        made, options = self._made(way)
        half(folder, made, **options, checkpoint={"async_save": True})

    def measured(self, folder: Path, way: Way | None) -> dict[str, Any]:
        """Measure the weights of the last checkpoint, and then the model's own, put back."""
        made, options = self._made(way)
        with opened(folder, made(), **options) as session:
            return {
                "last": session.evaluate_checkpoint("val", "last"),
                "own": session.evaluate("val"),
            }

    def _made(self, way: Way | None) -> tuple[Callable[[], Task], dict[str, Any]]:
        samples, size = CUTS[self.cut]
        options: dict[str, Any] = {"micro_batch_size": size, "optim": OPTIMIZERS[self.optimizer]}
        more = {} if way is None else way.options
        return lambda: task(data(samples=samples)), {**options, **more}


def goings_on(ranks: int) -> dict[str, Cell]:
    """Return the ways that runs go on in, on so many ranks: all of them, with one cell."""
    return {way: Cell(way, *GOES_ON) for way, each in WAYS.items() if ranks in each.ranks}


def cells(ranks: int) -> dict[tuple[str, str, str], Cell]:
    """Return what runs on so many ranks."""
    return {
        (way, cut, optimizer): Cell(way, cut, optimizer)
        for way, each in WAYS.items()
        if ranks in each.ranks
        for cut in CUTS
        for optimizer in OPTIMIZERS
        if ranks == min(each.ranks) or (cut, optimizer) in ONCE
    }
