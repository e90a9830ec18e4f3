"""Bytes that a model takes: in one process, and on each rank for every strategy.

Sources: Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054;
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from surestep.engine.batch import tensor_bytes
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.activation_memory import ActivationMemory
from surestep.engine.state.state import trainable_parameters

_HALF = ("bf16", "fp16")
_PERSISTENT = 100_000  # numbers; DeepSpeed's stage3_param_persistence_threshold


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device; None is not known.

    Attributes:
        modules: (name, type, parameters, of them trained) of the model's parts.
        parameters: numbers in the model; shared ones count once.
        trained: how many of them are trained.
        activations: what one micro-batch keeps for its backward; None before it is measured.
        activations_without: the same without activation checkpointing.
        attention: what computes scaled_dot_product_attention; empty if the model does not use it.
    """

    modules: list[tuple[str, str, int, int]]
    parameters: int
    trained: int
    weights: int
    buffers: int
    gradients: int
    optimizer: int | None
    average: int
    activations: int | None = None
    activations_without: int | None = None
    attention: tuple[str, ...] = ()


@dataclass(frozen=True)
class RankMemory:
    """Bytes on rank 0, which holds the most if sizes do not divide.

    Attributes:
        strategy: such as "fsdp full".
        weights: with buffers, between steps.
        gradients: in a step, of what the rank keeps.
        optimizer: its state, with master weights; None is not known.
        average: of the weights.
        passing: at most; full weights and gradients of blocks, and copies in half precision.
        activations: of one micro-batch; None is not known.
    """

    strategy: str
    weights: int
    gradients: int
    optimizer: int | None
    average: int
    passing: int
    activations: int | None = None

    @property
    def total(self) -> int:
        """The sum of what is known."""
        known = (self.optimizer or 0) + (self.activations or 0)
        return self.weights + self.gradients + self.average + self.passing + known


def estimate_memory(
    model: nn.Module, plan: Plan, measured: ActivationMemory | None = None
) -> MemoryEstimate:
    """Estimate from the model and the Plan; nothing runs."""
    trained = list(trainable_parameters(model).values())
    return MemoryEstimate(
        modules=_module_rows(model),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        trained=sum(parameter.numel() for parameter in trained),
        weights=tensor_bytes(model.parameters()),
        buffers=tensor_bytes(model.buffers()),
        gradients=tensor_bytes(trained),
        optimizer=state_bytes(plan.optim_name, plan.optim_options, model, trained),
        average=tensor_bytes(trained) if plan.average.kind != "none" else 0,
        activations=None if measured is None else measured.kept,
        activations_without=None if measured is None else measured.without,
        attention=() if measured is None else tuple(measured.attention),
    )


def _module_rows(model: nn.Module) -> list[tuple[str, str, int, int]]:
    """Return a row for each child, and one for parameters of the model itself."""
    children = [(name, child, list(child.parameters())) for name, child in model.named_children()]
    own = list(model.parameters(recurse=False))
    if own or not children:
        children.append(("(itself)" if children else "model", model, own))
    rows = []
    for name, child, parameters in children:
        trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
        numbers = sum(parameter.numel() for parameter in parameters)
        rows.append((name, type(child).__name__, numbers, trained))
    return rows


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
    full: MemoryEstimate,
    *,
    blocks: Sequence[nn.Module],
    ranks: int,
    local: int,
    precision: str,
) -> list[RankMemory]:
    """Estimate what rank 0 holds under each strategy.

    Args:
        model: on any device, also the meta device.
        full: its memory in one process.
        blocks: whose weights are gathered one after another.
        ranks: all of them.
        local: ranks of one machine, among which hybrid shards.
        precision: in which it computes.
    """
    half = 2 if precision in _HALF else 1
    ddp = RankMemory(
        "ddp",
        full.weights + full.buffers,
        full.gradients,
        full.optimizer,
        full.average,
        full.weights // 2 if half == 2 else 0,  # autocast keeps a copy of each weight
        full.activations,
    )
    block_bytes = sorted((tensor_bytes(block.parameters()) for block in blocks), reverse=True)
    shards = (("full", ranks), ("grad_op", ranks), ("hybrid", local))
    fsdp = [_fsdp(model, full, block_bytes, name, count, half) for name, count in shards]
    return [ddp, *fsdp, *_zero(model, full, block_bytes, ranks, half)]


def _fsdp(
    model: nn.Module, full: MemoryEstimate, blocks: list[int], name: str, ranks: int, half: int
) -> RankMemory:
    """A shard of each parameter; the root's own are full from forward to backward."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = sharded_bytes(trained, ranks)
    share = gradients / max(1, tensor_bytes(trained))
    root = full.weights - sum(blocks)
    gathered = full.weights if name == "grad_op" else root + sum(blocks[:2])
    passing = (gathered + max([root, *blocks[:1]])) // half if ranks > 1 else 0
    return RankMemory(
        f"fsdp {name}",
        sharded_bytes(model.parameters(), ranks) + full.buffers,
        gradients,
        None if full.optimizer is None else round(full.optimizer * share),
        round(full.average * share),
        passing,
        full.activations,
    )


def _zero(
    model: nn.Module, full: MemoryEstimate, blocks: list[int], ranks: int, half: int
) -> list[RankMemory]:
    """DeepSpeed shards flat buffers: the optimizer's first, then gradients, then weights.

    In half precision the fp32 weights belong to the optimizer. Stage 3 keeps small parameters full
    on each rank beside their shards.
    """
    weights, gradients = full.weights // half, full.gradients // half
    small = (
        tensor_bytes(
            parameter for parameter in model.parameters() if parameter.numel() <= _PERSISTENT
        )
        // half
    )
    optimizer = None if full.optimizer is None else (full.optimizer + full.gradients) // ranks
    gathered = 2 * (blocks[0] if blocks else full.weights) // half
    return [
        RankMemory(
            f"deepspeed zero {stage}",
            (weights if stage < 3 else weights // ranks + small) + full.buffers,
            gradients if stage < 2 else gradients // ranks,
            optimizer,
            full.average,
            0 if stage < 3 else gathered,
            full.activations,
        )
        for stage in (1, 2, 3)
    ]
