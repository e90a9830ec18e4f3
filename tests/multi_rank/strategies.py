"""Every strategy with every split of a batch and two optimizers.

Each kind of strategy that shards other state runs all of them on two ranks: DDP, FSDP, ZeRO 1 and
ZeRO 3. All others run each split and each optimizer once: FSDP with grad_op differs from full in
when it frees weights, hybrid copies the shards of full, Accelerate and ZeRO 0 reduce gradients as
DDP, and ZeRO 2 shards the optimizer as ZeRO 1. So do four ranks, with what depends on their number:
how a batch is split (DDP), and how state is (FSDP and ZeRO 3).

A new strategy adds one row here, and its numbers of ranks to TABLE in `test_ranks.py`, whose
launches run its cells. If the memory formula describes it, add it to CALLED in
`test_memory_formula.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from surestep import Task
from surestep.trainer.session import Session
from tests.multi_rank import deepspeed_engine, fsdp
from tests.multi_rank.cases import SGD, data, half, opened, task, trained
from tests.multi_rank.memory import held_bytes
from tests.multi_rank.traffic import traffic_of_a_step


def plain_weights(session: Session) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in session.model.state_dict().items()}


def shown_by_all(session: Session) -> dict[str, Any]:
    """Return what a rank holds, and the traffic of a step."""
    held = sum(each.numel() for each in session.model.parameters())
    return {"held": held, "traffic": traffic_of_a_step(session)}


@dataclass(frozen=True)
class Way:
    """One strategy.

    Attributes:
        options: of the Config.
        ranks: the numbers of ranks it runs on.
        weights: returns the full weights, on each rank.
        shows: called on a rank after training; returns evidence of what the strategy does.
        proves: checks the evidence, given the number of ranks.
        tolerance: of law 1, |a - b| / |a| over all weights after the last step; ten times as
            much for a loss or a metric.
    """

    options: Mapping[str, Any]
    proves: Callable[[Mapping[str, Any], int], None]
    ranks: tuple[int, ...] = (2,)
    weights: Callable[[Session], dict[str, Tensor]] = plain_weights
    shows: Callable[[Session], dict[str, Any]] = shown_by_all
    tolerance: float = 1e-6


WHOLE = sum(each.numel() for each in task().build_model().parameters())
# The loss, the items as nine digits, requests and time.
CARGO = 1 + 9 + 2


def _is_ddp(shown: Mapping[str, Any], ranks: int) -> None:
    """Check that each rank has a replica and reduces one bucket of gradients, as plain DDP.

    The bucket also holds the loss and values of the host: the items as nine digits, requests of
    ranks, and the time.
    """
    assert shown["held"] == WHOLE
    assert shown["traffic"] == {"all_reduce": [WHOLE + CARGO]}


def _fsdp(shard: str, ranks: tuple[int, ...] = (2,), **more: Any) -> Way:
    options = {"parallel": {"strategy": "fsdp", "shard": shard, **more}}
    return Way(options, fsdp.proves(shard), ranks, fsdp.whole_weights, fsdp.shows(shard))


def shown_by_accelerate(session: Session) -> dict[str, Any]:
    from accelerate.state import AcceleratorState

    state: Any = AcceleratorState()
    shown = {"type": str(state.distributed_type), "processes": state.num_processes}
    return {**shown_by_all(session), **shown}


def _is_accelerate(shown: Mapping[str, Any], ranks: int) -> None:
    assert shown["type"] == "DistributedType.MULTI_CPU"
    assert shown["processes"] == ranks
    _is_ddp(shown, ranks)


WAYS = {
    "ddp": Way({"parallel": {"strategy": "ddp"}}, _is_ddp, (2, 4)),
    "fsdp-full": _fsdp("full", (2, 4)),
    "fsdp-grad_op": _fsdp("grad_op"),
    "fsdp-hybrid": _fsdp("hybrid", (4,), shard_size=2),
    **{
        f"zero-{stage}": Way(
            {"parallel": {"strategy": "deepspeed", "zero_stage": stage}},
            deepspeed_engine.is_stage(stage),
            ranks=(2, 4) if stage == 3 else (2,),
            weights=deepspeed_engine.whole_weights,
            shows=deepspeed_engine.shown_by_engine,
        )
        for stage in range(4)
    },
    "accelerate": Way(
        {"parallel": {"strategy": "accelerate"}}, _is_accelerate, shows=shown_by_accelerate
    ),
}

# Samples of an epoch and micro-batch size, for batches of 20: 10 a rank on 2 ranks.
CUTS: dict[str, tuple[int, int | None]] = {
    "one micro-batch": (100, None),
    "uneven": (100, 3),
    "leftover": (110, 4),
    "an empty rank": (101, None),
}
GOES_ON = ("uneven", "adamw")
COMPLETE = ("ddp", "fsdp-full", "zero-1", "zero-3")
STEPS = 9  # of a cell: an epoch has 5 or 6, so each ends one, and a resume is in the second
MEASURED = ("one micro-batch", "adamw")  # the cell whose bytes are compared with the formula
# The cells that show what a strategy holds and sends: by the optimizer and by the micro-batches.
SHOWN = [MEASURED, GOES_ON, ("leftover", "sgd")]
ONCE = [
    *(("one micro-batch", "adamw"), ("uneven", "adamw")),
    *(("leftover", "sgd"), ("an empty rank", "sgd")),
]
# Resumes between two strategies that both shard.
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
        """Train or resume to the last step; in one process without a strategy."""
        made, options = self._made(way)
        if way is None:
            return trained(folder, made(), **options)
        return trained(folder, made(), weights=way.weights, **options)

    def shown(self, folder: Path, way: Way) -> dict[str, Any]:
        """Train to the last step, and return also what the strategy holds and sends."""
        made, options = self._made(way)

        def shows(session: Session) -> dict[str, Any]:
            measured = (self.cut, self.optimizer) == MEASURED
            held = {"bytes": held_bytes(session)} if measured else {}
            return {**way.shows(session), **held}

        return trained(folder, made(), weights=way.weights, shows=shows, **options)

    def half(self, folder: Path, way: Way | None) -> None:
        """Stop after 7 steps with a checkpoint, written during the eighth."""
        made, options = self._made(way)
        half(folder, made, **options, checkpoint={"async_save": True})

    def measured(self, folder: Path, way: Way | None) -> dict[str, Any]:
        """Evaluate the weights of the last checkpoint, then the restored weights of the model."""
        made, options = self._made(way)
        with opened(folder, made(), **options) as session:
            return {
                "last": session.evaluate_checkpoint("val", "last"),
                "own": session.evaluate("val"),
            }

    def _made(self, way: Way | None) -> tuple[Callable[[], Task], dict[str, Any]]:
        samples, size = CUTS[self.cut]
        options: dict[str, Any] = {"micro_batch_size": size, "optim": OPTIMIZERS[self.optimizer]}
        options["max_steps"] = STEPS
        more = {} if way is None else way.options
        return lambda: task(data(samples=samples)), {**options, **more}


def resume_cells(ranks: int) -> dict[str, Cell]:
    """Return the cells whose runs are resumed on a number of ranks."""
    return {way: Cell(way, *GOES_ON) for way, each in WAYS.items() if ranks in each.ranks}


def cells(ranks: int) -> dict[tuple[str, str, str], Cell]:
    """Return the cells of a number of ranks."""
    return {
        (way, cut, optimizer): Cell(way, cut, optimizer)
        for way, each in WAYS.items()
        if ranks in each.ranks
        for cut in CUTS
        for optimizer in OPTIMIZERS
        if (way in COMPLETE and ranks == 2) or (cut, optimizer) in ONCE
    }
