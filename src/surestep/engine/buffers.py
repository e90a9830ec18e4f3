"""Buffers that a model's state_dict leaves out and training changes, and those of a loss.

Most follow from the sizes of the model, such as masks and rotary angles, and need not be saved.
Those that differ from their first values are part of the State.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import CheckpointError

Slot = tuple[str, nn.Module, str]  # the full name, the owner, and its name there
_WORDS = {1: torch.uint8, 2: torch.int16}
_LAYERS = "torch.nn."  # not torch.ao.quantization: its observers have their own loading
NORM_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_FIXED: dict[type[nn.Module], tuple[str, ...]] = {
    nn.modules.batchnorm._NormBase: NORM_STATISTICS,
    nn.modules.loss._Loss: ("weight", "pos_weight"),
}


def left_out_of_state(model: nn.Module) -> Iterator[Slot]:
    """Yield the buffers that a state_dict leaves out."""
    for prefix, module in model.named_modules():
        for key in sorted(module._non_persistent_buffers_set):
            yield f"{prefix}.{key}" if prefix else key, module, key


def every_buffer(model: nn.Module) -> Iterator[Slot]:
    """Yield all buffers."""
    for prefix, module in model.named_modules():
        for key in module._buffers:
            yield f"{prefix}.{key}" if prefix else key, module, key


def every_parameter(*models: nn.Module | None) -> Iterator[Slot]:
    """Yield all parameters, a shared one once."""
    visited = set()
    for model in models:
        for prefix, module in () if model is None else model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in visited:
                    visited.add(id(parameter))
                    yield f"{prefix}.{key}" if prefix else key, module, key


def version_of(tensor: Tensor) -> int:
    """Return the number that each write to a tensor raises; 0 for one of inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def bits_of(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as whole numbers in one dimension; NaN is equal to itself."""
    return tensor.detach().reshape(-1).view(_WORDS.get(tensor.element_size(), torch.int32))


def empty_buffers(model: nn.Module) -> set[str]:
    """Return the names of a state_dict's buffers that are None until training fills them."""
    return {
        name
        for name, owner, key in every_buffer(model)
        if owner._buffers[key] is None and key not in owner._non_persistent_buffers_set
    }


def none_buffers(model: nn.Module) -> set[str]:
    """Return the names of all buffers that are None."""
    return {name for name, owner, key in every_buffer(model) if owner._buffers[key] is None}


def may_change(owner: nn.Module, key: str) -> bool:
    """Return whether training may change the shape and dtype of a module's buffer.

    It never does so to a buffer of torch's own layers: a different shape there is that of a
    different model. A layer may have other buffers, of a subclass or of a hook.
    """
    is_fixed = any(isinstance(owner, kind) and key in keys for kind, keys in _FIXED.items())
    return not (is_fixed and has_plain_loading(owner))


def has_plain_loading(owner: nn.Module) -> bool:
    """Return whether a module loads its buffers as torch's layers do, by a copy into each."""
    loading = getattr(type(owner), "_load_from_state_dict", None)
    return getattr(loading, "__module__", _LAYERS).startswith(_LAYERS)


Slots = Callable[[nn.Module], Iterator[Slot]]


def initial_values(model: nn.Module, slots: Slots = left_out_of_state) -> dict[str, Tensor | None]:
    """Copy buffers to the host, by name; waits for the device. One may be None until later."""
    return {
        name: None if (now := owner._buffers[key]) is None else now.detach().cpu().clone()
        for name, owner, key in slots(model)
    }


def changed_buffers(
    model: nn.Module, before: Mapping[str, Tensor | None], slots: Slots = left_out_of_state
) -> dict[str, Tensor]:
    """Return the buffers that differ from their first values; waits for the device.

    Raises:
        CheckpointError: one of them is sparse.
    """
    found: dict[str, Tensor] = {}
    for name, owner, key in slots(model):
        now = owner._buffers[key]
        if name in before and now is not None and not _same(now, before[name]):
            if now.layout is not torch.strided:
                raise CheckpointError(
                    f"The sparse buffer {name} changed in training, and a checkpoint holds no "
                    "sparse buffers with persistent=False. Register it with persistent=True."
                )
            found[name] = now
    return found


@torch.no_grad()
def restore_buffers(
    model: nn.Module,
    before: Mapping[str, Tensor | None],
    values: Mapping[str, Tensor],
    slots: Slots = left_out_of_state,
    *,
    keeps_dtypes: bool = True,
) -> None:
    """Load values into the buffers; the others get their first values.

    One that has a different shape, or was None, is replaced; so is one of a different dtype if
    `keeps_dtypes`, otherwise its values are converted.
    """
    loaded = {**before, **values}
    known = [slot for slot in slots(model) if slot[0] in loaded]
    separate_buffers(known, loaded)
    replaced: dict[int, Tensor] = {}
    for (name, owner, key), now in [(slot, slot[1]._buffers[slot[2]]) for slot in known]:
        value = loaded[name]
        if now is None or value is None:
            tensors = (*model.parameters(), *model.buffers())
            device = next((tensor.device for tensor in tensors), torch.device("cpu"))
            owner._buffers[key] = None if value is None else value.to(device, copy=True)
        elif now.layout == value.layout and not differs(now, value, keeps_dtypes=keeps_dtypes):
            now.copy_(value)
        else:
            owner._buffers[key] = replacement(now, value, replaced, keeps_dtypes=keeps_dtypes)


def separate_buffers(slots: Iterable[Slot], values: Mapping[str, Any]) -> None:
    """Copy a buffer that is the tensor of another one, if they are to get different values."""
    first: dict[int, Any] = {}
    for name, owner, key in slots:
        if (now := owner._buffers[key]) is None or name not in values:
            continue
        value, other = values[name], first.setdefault(id(now), values[name])
        if value is not other and not (isinstance(value, Tensor) and _same(value, other)):
            owner._buffers[key] = now.clone()


def replacement(
    now: Tensor, value: Tensor, replaced: dict[int, Tensor], *, keeps_dtypes: bool
) -> Tensor:
    """Return the copy of a value that replaces a buffer, the same one wherever the model has it.

    `replaced` has the copies that were made, by the id of what they replace.
    """
    if id(now) not in replaced:
        dtype = dtype_for(now, value, keeps_dtypes=keeps_dtypes)
        replaced[id(now)] = value.to(now.device, dtype, copy=True)
    return replaced[id(now)]


def differs(now: Tensor, value: Tensor, *, keeps_dtypes: bool = True) -> bool:
    """Return whether a value has a different shape, or another dtype than it is loaded as."""
    return now.shape != value.shape or now.dtype != dtype_for(now, value, keeps_dtypes=keeps_dtypes)


def dtype_for(now: Tensor, value: Tensor, *, keeps_dtypes: bool) -> torch.dtype:
    """Return the dtype of a loaded value: its own, or the model's for a number with a fraction."""
    is_converted = now.is_floating_point() and value.is_floating_point() and not keeps_dtypes
    return now.dtype if is_converted else value.dtype


def _same(now: Tensor, before: Tensor | None) -> bool:
    if before is None or differs(now, before) or now.layout != before.layout:
        return False
    a, b = now.detach().cpu(), before.cpu()
    if now.layout is torch.strided:
        return torch.equal(a, b)
    a, b = a.to_sparse_coo().coalesce(), b.to_sparse_coo().coalesce()
    return torch.equal(a.indices(), b.indices()) and torch.equal(a.values(), b.values())
