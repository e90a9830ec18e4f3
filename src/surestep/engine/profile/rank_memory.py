"""Bytes on each rank for every strategy: the traced step of one process, and what is sharded of it.

Sources: Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054;
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from surestep.engine.batch import tensor_bytes
from surestep.engine.profile.step_memory import StepMemory
from surestep.engine.state.state import trainable_parameters

_HALF = ("bf16", "fp16")
_PERSISTENT = 100_000  # numbers; DeepSpeed's stage3_param_persistence_threshold


@dataclass(frozen=True)
class RankMemory:
    """Bytes on rank 0, which holds the most if sizes do not divide.

    Attributes:
        strategy: such as "fsdp full".
        weights: with buffers, between steps.
        gradients: of what the rank keeps, all of them.
        optimizer: its state, with master weights; None is not known.
        average: of the weights.
        passing: at most; full weights and gradients of blocks, and copies in half precision.
        step: traced: inputs, activations, temporaries and workspace; None is not known.
    """

    strategy: str
    weights: int
    gradients: int
    optimizer: int | None
    average: int
    passing: int
    step: int | None = None

    @property
    def total(self) -> int:
        """The sum of what is known."""
        known = (self.optimizer or 0) + (self.step or 0)
        return self.weights + self.gradients + self.average + self.passing + known


def sharded_bytes(parameters: Iterable[Tensor], ranks: int) -> int:
    """Return the bytes on rank 0 if torch.chunk splits each parameter's first dimension."""

    def numbers(parameter: Tensor) -> int:
        if not parameter.dim() or not parameter.numel():
            return parameter.numel()
        rows = parameter.shape[0]
        return math.ceil(rows / ranks) * (parameter.numel() // rows)

    return sum(numbers(parameter) * parameter.element_size() for parameter in parameters)


def estimate_rank_memory(
    model: nn.Module,
    traced: StepMemory,
    *,
    blocks: Sequence[nn.Module],
    ranks: int,
    local: int,
    precision: str,
) -> list[RankMemory]:
    """Estimate what rank 0 holds under each strategy.

    Args:
        model: on any device, also the meta device.
        traced: a step of one process, with the samples of a rank.
        blocks: whose weights are gathered one after another.
        ranks: all of them.
        local: ranks of one machine, among which hybrid shards.
        precision: in which it computes.
    """
    half = 2 if precision in _HALF else 1
    ddp = RankMemory(
        "ddp",
        traced.weights + traced.buffers,
        tensor_bytes(trainable_parameters(model).values()),
        traced.optimizer,
        traced.average,
        traced.copies,
    )
    block_bytes = sorted((tensor_bytes(block.parameters()) for block in blocks), reverse=True)
    shards = (("full", ranks), ("grad_op", ranks), ("hybrid", local))
    found = [
        ddp,
        *(_fsdp(model, ddp, traced, block_bytes, name, count, half) for name, count in shards),
        *_zero(model, ddp, traced, block_bytes, ranks, half),
    ]
    return [replace(rank, step=_step_of(rank, ddp, traced)) for rank in found]


def _step_of(rank: RankMemory, ddp: RankMemory, traced: StepMemory) -> int | None:
    """Return what a step adds; the optimizer's temporaries are of the gradients that it keeps."""
    if traced.not_known:
        return None
    share = rank.gradients / max(1, ddp.gradients)
    return max(traced.in_backward, round(traced.in_update * share))


def _fsdp(
    model: nn.Module,
    ddp: RankMemory,
    traced: StepMemory,
    blocks: list[int],
    name: str,
    ranks: int,
    half: int,
) -> RankMemory:
    """A shard of each parameter; the root's own are full from forward to backward."""
    gradients = sharded_bytes(trainable_parameters(model).values(), ranks)
    share = gradients / max(1, ddp.gradients)
    root = traced.weights - sum(blocks)
    gathered = traced.weights if name == "grad_op" else root + sum(blocks[:2])
    passing = (gathered + max([root, *blocks[:1]])) // half if ranks > 1 else 0
    return RankMemory(
        f"fsdp {name}",
        sharded_bytes(model.parameters(), ranks) + traced.buffers,
        gradients,
        None if ddp.optimizer is None else round(ddp.optimizer * share),
        round(ddp.average * share),
        passing,
    )


def _zero(
    model: nn.Module,
    ddp: RankMemory,
    traced: StepMemory,
    blocks: list[int],
    ranks: int,
    half: int,
) -> list[RankMemory]:
    """DeepSpeed shards flat buffers: the optimizer's first, then gradients, then weights.

    In half precision the fp32 weights belong to the optimizer. Stage 3 keeps small parameters full
    on each rank beside their shards.
    """
    weights, gradients = traced.weights // half, ddp.gradients // half
    small = (
        tensor_bytes(
            parameter for parameter in model.parameters() if parameter.numel() <= _PERSISTENT
        )
        // half
    )
    optimizer = None if ddp.optimizer is None else (ddp.optimizer + ddp.gradients) // ranks
    gathered = 2 * (blocks[0] if blocks else traced.weights) // half
    return [
        RankMemory(
            f"deepspeed zero {stage}",
            (weights if stage < 3 else weights // ranks + small) + traced.buffers,
            gradients if stage < 2 else gradients // ranks,
            optimizer,
            ddp.average,
            0 if stage < 3 else gathered,
        )
        for stage in (1, 2, 3)
    ]
