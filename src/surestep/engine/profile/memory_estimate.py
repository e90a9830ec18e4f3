"""What a model takes: parameters by module, bytes by kind."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from surestep.engine.optim.state_size import state_bytes
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.activation_memory import ActivationMemory
from surestep.engine.state.state import trainable_parameters


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the device; None is not known.

    Attributes:
        modules: (name, type, parameters, of them trained) of the model's parts.
        parameters: of the whole model; one that parts share counts once.
        trained: how many of them are trained.
        activations: what one micro-batch keeps for its backward; None before it is measured.
        activations_without: the same without activation checkpointing.
        attention: what computes scaled_dot_product_attention; empty where nothing does.
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


def estimate_memory(
    model: nn.Module, plan: Plan, measured: ActivationMemory | None = None
) -> MemoryEstimate:
    """Count from the model and the Plan; nothing is run."""
    trained = list(trainable_parameters(model).values())
    return MemoryEstimate(
        modules=_rows(model),
        parameters=sum(each.numel() for each in model.parameters()),
        trained=sum(each.numel() for each in trained),
        weights=tensor_bytes(model.parameters()),
        buffers=tensor_bytes(model.buffers()),
        gradients=tensor_bytes(trained),
        optimizer=state_bytes(plan.optim_name, plan.optim_options, model, trained),
        average=tensor_bytes(trained) if plan.average.kind != "none" else 0,
        activations=None if measured is None else measured.kept,
        activations_without=None if measured is None else measured.without,
        attention=() if measured is None else tuple(measured.attention),
    )


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _rows(model: nn.Module) -> list[tuple[str, str, int, int]]:
    """Return a row for each part, and one for parameters that are the model's own."""
    parts = [(name, module, list(module.parameters())) for name, module in model.named_children()]
    own = list(model.parameters(recurse=False))
    if own or not parts:
        parts.append(("(itself)" if parts else "model", model, own))
    return [_row(*part) for part in parts]


def _row(name: str, module: nn.Module, parameters: list[nn.Parameter]) -> tuple[str, str, int, int]:
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    return name, type(module).__name__, sum(each.numel() for each in parameters), trained
