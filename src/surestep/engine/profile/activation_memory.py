"""What a forward keeps in memory for its backward, measured; and what computes attention."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.losses.multi import split_heads
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.activation_checkpointing import (
    activation_checkpointing,
    select_modules,
    uses_own_checkpointing,
)
from surestep.engine.model.compile import DispatchMode
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.precision import autocast, place_model
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.modes import TrainModes, preserve_modes, preserve_weights
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import ModelRNG, preserve_torch_rng

_SDPA = "scaled_dot_product_"


@dataclass
class ActivationMemory:
    """What one micro-batch keeps between its forward and its backward.

    Attributes:
        kept: bytes.
        without: bytes without activation checkpointing.
        attention: the kernels of scaled_dot_product_attention; empty if the model does not use it.
    """

    kept: int
    without: int
    attention: list[str]


def measure_activations(
    model: nn.Module, loader: BatchLoader, plan: Plan, keep_eval: tuple[nn.Module, ...] = ()
) -> ActivationMemory:
    """Run the forward of the first micro-batch in training mode.

    Buffers, modes and generators are restored.
    """
    model = place_model(model, plan)
    _, micro = loader.first()
    recorder = _AttentionRecorder()
    with (
        preserve_weights(model),
        preserve_buffers(model, loader.loss.module),
        ForwardWrites(model, loader.loss.module).compare(),
        preserve_modes(model.modules()),
        preserve_torch_rng(plan.device),
        recorder,
    ):
        try:
            TrainModes(model, keep_eval)
            ModelRNG(plan.seed, plan.device).seed_for("trial", 0)
            without = kept = _kept_bytes(model, micro, loader, plan, "off")
            if plan.activation_checkpointing != "off":
                kept = _kept_bytes(model, micro, loader, plan, plan.activation_checkpointing)
        finally:
            pop_logged()
    return ActivationMemory(kept, without, list(dict.fromkeys(recorder.kernels)))


def _kept_bytes(
    model: nn.Module, micro: MicroBatch, loader: BatchLoader, plan: Plan, choice: str
) -> int:
    """Return the bytes saved for the backward, without weights and inputs."""
    given = [*model.parameters(), *model.buffers(), *flatten_tensors(tuple(micro))]
    excluded = {tensor.untyped_storage().data_ptr() for tensor in given}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in excluded:
            saved[address] = tensor  # a reference, so that the address is not used again
        return tensor

    def keep_inputs(module: nn.Module, args: Any, kwargs: Any) -> None:
        for tensor in flatten_tensors((args, kwargs)):
            keep(tensor)  # a checkpointed module is recomputed from these

    with ExitStack() as stack:
        stack.enter_context(activation_checkpointing(model, choice))
        if choice != "off" and not (choice == "on" and uses_own_checkpointing(model)):
            for module in select_modules(model, choice).values():
                hook = module.register_forward_pre_hook(keep_inputs, with_kwargs=True)
                stack.callback(hook.remove)
        stack.enter_context(saved_tensors_hooks(keep, lambda tensor: tensor))
        with autocast(plan):
            outputs = model(*micro.args, **micro.kwargs)
            for head in split_heads(loader.loss, outputs, micro):
                head.loss.value(head.outputs, head.loss.targets_of(head.micro_batch))
    return sum(entry.untyped_storage().nbytes() for entry in saved.values())


class _KernelRecorder(DispatchMode):
    """Records the names of attention kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.").split(".")[0].lstrip("_")
        if name.startswith(_SDPA):
            self.kernels.append(name.removeprefix(_SDPA))
        return func(*args, **(kwargs or {}))


class _AttentionRecorder(TorchFunctionMode):
    """Records what computes attention: a kernel, or "math" if plain products do."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        recorder = _KernelRecorder()
        with recorder:
            result = func(*args, **(kwargs or {}))
        self.kernels += recorder.kernels or ["math"]
        return result
