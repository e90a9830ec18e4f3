"""What each rank holds of a model's state, by formula, for every way to share it.

The letters are those of the paper: P bytes of weights, G of gradients, O of the optimizer's state.
Between steps lies what a rank keeps; in a step there are for a moment the whole weights of two
blocks, the one at work and the one that is fetched meanwhile, and the gradient of one.

Sources: Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054;
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from surestep.engine.parallel.deepspeed.config import AUTO
from surestep.engine.profile.memory_estimate import MemoryEstimate, tensor_bytes

HALF = ("bf16", "fp16")


@dataclass(frozen=True)
class RankMemory:
    """Bytes on one rank; the first rank, which holds the most where sizes do not divide.

    Attributes:
        way: how the ranks share, such as "fsdp full".
        weights: of it, with buffers, between steps.
        gradients: in a step, of what the rank keeps.
        optimizer: its state, with master weights; None is not known.
        average: of the weights.
        passing: whole weights and gradients of blocks, and copies in half precision, at the most.
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
        """What is known of it, added up."""
        known = (self.optimizer or 0) + (self.activations or 0)
        return self.weights + self.gradients + self.average + self.passing + known


def sharded_bytes(parameters: Iterable[Tensor], ranks: int) -> int:
    """Return the bytes of the first rank's rows, each parameter cut along its first dimension."""
    return sum(_rows(each, ranks) * each.element_size() for each in parameters)


def _rows(parameter: Tensor, ranks: int) -> int:
    """Return how many of its numbers the first rank holds, as torch.chunk cuts."""
    if not parameter.dim() or not parameter.numel():
        return parameter.numel()
    rows = parameter.shape[0]
    return math.ceil(rows / ranks) * (parameter.numel() // rows)


def estimate_rank_memory(
    model: nn.Module,
    takes: MemoryEstimate,
    *,
    blocks: Sequence[nn.Module],
    ranks: int,
    local: int,
    precision: str,
    deepspeed: Mapping[str, Any] | None = None,
) -> list[RankMemory]:
    """Return what the first rank holds, for each way to share the state.

    Args:
        model: on any device, the meta device too.
        takes: what it takes in one process.
        blocks: whose weights are gathered one after another.
        ranks: all of them.
        local: of them on one machine, among which hybrid shards.
        precision: in which it computes.
        deepspeed: its configuration, which says what ZeRO 3 keeps whole.
    """
    whole = tensor_bytes(_persistent(model, (deepspeed or {}).get("zero_optimization", {})))
    return [
        _copied(takes, precision),
        *(
            _sharded(model, takes, blocks, (name, n), precision)
            for name, n in (("full", ranks), ("grad_op", ranks), ("hybrid", local))
        ),
        *(_zero(takes, blocks, stage, ranks, precision) for stage in (1, 2)),
        _zero(takes, blocks, 3, ranks, precision, whole),
    ]


def _copied(takes: MemoryEstimate, precision: str) -> RankMemory:
    """DDP: all of it on each rank; autocast keeps a half copy of each weight in a forward."""
    return RankMemory(
        "ddp",
        takes.weights + takes.buffers,
        takes.gradients,
        takes.optimizer,
        takes.average,
        takes.weights // 2 if precision in HALF else 0,
        takes.activations,
    )


def _sharded(
    model: nn.Module,
    takes: MemoryEstimate,
    blocks: Sequence[nn.Module],
    by: tuple[str, int],
    precision: str,
) -> RankMemory:
    """FSDP: a part of each parameter; of the root's own, the whole from forward to backward."""
    name, ranks = by
    trained = [each for each in model.parameters() if each.requires_grad]
    kept, slots = sharded_bytes(model.parameters(), ranks), sharded_bytes(trained, ranks)
    part = slots / max(1, tensor_bytes(trained))
    half = 2 if precision in HALF else 1
    sizes = sorted((tensor_bytes(each.parameters()) for each in blocks), reverse=True)
    of_root = takes.weights - sum(sizes)
    gathered = takes.weights if name == "grad_op" else of_root + sum(sizes[:2])
    passing = (gathered + max([of_root, *sizes[:1]])) // half if ranks > 1 else 0
    return RankMemory(
        f"fsdp {name}",
        kept + takes.buffers,
        slots,
        None if takes.optimizer is None else round(takes.optimizer * part),
        round(takes.average * part),
        passing,
        takes.activations,
    )


def _persistent(model: nn.Module, keys: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield what each rank of ZeRO 3 has whole beside its part, since it is small."""
    of_model = keys.get("stage3_model_persistence_threshold", sys.maxsize)
    of_one = keys.get(_THRESHOLD, AUTO[f"zero_optimization.{_THRESHOLD}"])
    for each in model.parameters():
        if each.numel() <= min(of_one, of_model):
            of_model -= each.numel()
            yield each


_THRESHOLD = "stage3_param_persistence_threshold"


def _zero(
    takes: MemoryEstimate,
    blocks: Sequence[nn.Module],
    stage: int,
    ranks: int,
    precision: str,
    whole: int = 0,
) -> RankMemory:
    """DeepSpeed: flat parts; in half precision the fp32 weights are the optimizer's.

    The optimizer's part is cut first, then gradients, then weights, but for some.
    """
    half = 2 if precision in HALF else 1
    weights, gradients = takes.weights // half, takes.gradients // half
    largest = (
        max((tensor_bytes(each.parameters()) for each in blocks), default=takes.weights) // half
    )
    state = None if takes.optimizer is None else (takes.optimizer + takes.gradients) // ranks
    return RankMemory(
        f"deepspeed zero {stage}",
        (weights // ranks + whole // half if stage == 3 else weights) + takes.buffers,
        gradients // ranks if stage >= 2 else gradients,
        state,
        takes.average,
        2 * largest if stage == 3 else 0,
        takes.activations,
    )
