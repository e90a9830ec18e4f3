"""What a forward keeps in memory for its backward, measured; and what computes attention."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.dispatch import DispatchMode
from surestep.engine.losses.adapt import loss_targets
from surestep.engine.losses.multi import split_heads
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.activation_checkpointing import (
    activation_checkpointing,
    select_modules,
    uses_own_checkpointing,
)
from surestep.engine.model.precision import autocast, place_model
from surestep.engine.model.preserve import TrainModes, preserve_buffers, preserve_modes
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import ModelRNG, preserve_torch_rng

_SDPA = "scaled_dot_product_"


@dataclass
class ActivationMemory:
    """What one micro-batch leaves in memory between its forward and its backward.

    Attributes:
        kept: bytes.
        without: bytes it would be without activation checkpointing.
        attention: what computed scaled_dot_product_attention, as torch calls it; empty where the
            model does not use it.
    """

    kept: int
    without: int
    attention: list[str] = field(default_factory=list)


def measure_activations(
    model: nn.Module, feed: BatchLoader, plan: Plan, keep_eval: tuple[nn.Module, ...] = ()
) -> ActivationMemory:
    """Run one forward in training mode, of the first micro-batch, and look at what it keeps.

    The model's buffers and modes, and the generators, are put back.
    """
    model = place_model(model, plan)
    _, micro = feed.first()
    attention: list[str] = []
    with (
        preserve_modes(model.modules()),
        preserve_buffers(model, feed.loss.module),
        preserve_torch_rng(plan.device),
        _Attention(attention),
    ):
        try:
            TrainModes(model, keep_eval)
            ModelRNG(plan.seed, plan.device).seed_micro_batch(0, micro.position)
            without = _kept(model, micro, feed, plan, "off")
            kept = without
            if plan.activation_checkpointing != "off":
                kept = _kept(model, micro, feed, plan, plan.activation_checkpointing)
        finally:
            pop_logged()
    return ActivationMemory(kept, without, list(dict.fromkeys(attention)))


def _kept(model: nn.Module, micro: MicroBatch, feed: BatchLoader, plan: Plan, choice: str) -> int:
    """Count the bytes of what is saved for the backward, beside weights and inputs."""
    given = [*model.parameters(), *model.buffers(), *flatten_tensors(tuple(micro))]
    apart = {each.untyped_storage().data_ptr() for each in given}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in apart:
            saved[place] = tensor  # held, so that its place is not given to another
        return tensor

    def see(module: nn.Module, args: Any, kwargs: Any) -> None:
        for each in flatten_tensors((args, kwargs)):
            keep(each)  # what a checkpointed module starts from again

    with ExitStack() as stack:
        stack.enter_context(activation_checkpointing(model, choice))
        if choice != "off" and not (choice == "on" and uses_own_checkpointing(model)):
            for module in select_modules(model, choice).values():
                stack.callback(module.register_forward_pre_hook(see, with_kwargs=True).remove)
        stack.enter_context(saved_tensors_hooks(keep, lambda tensor: tensor))
        with autocast(plan):
            outputs = model(*micro.args, **micro.kwargs)
            for head in split_heads(feed.loss, outputs, micro):
                head.loss.value(head.outputs, loss_targets(head.loss, head.micro))
    return sum(each.untyped_storage().nbytes() for each in saved.values())


class _AttentionKernelRecorder(DispatchMode):
    """Notices the kernels that compute attention."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.").split(".")[0].lstrip("_")
        if name.startswith(_SDPA):
            self.seen.append(name.removeprefix(_SDPA))
        return func(*args, **(kwargs or {}))


class _Attention(TorchFunctionMode):
    """Notices what computes attention: a kernel, or where none does, plain products."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        kernels: list[str] = []
        with _AttentionKernelRecorder(kernels):
            result = func(*args, **(kwargs or {}))
        self.seen += kernels or ["math"]
        return result
