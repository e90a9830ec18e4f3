"""Read the state of optimizers: by name in a checkpoint, by index in torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.parallel.pieces import Keeper, is_cut
from surestep.engine.state import State
from surestep.record.checkpoint.opened import Opened
from surestep.record.checkpoint.slots import names_in, restore
from surestep.record.checkpoint.snapshot import LEFT_OUT, kind_of
from surestep.record.kinds import shown

_WALKED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")


def fitting_states(found: Opened, state: State) -> dict[str, dict[str, Any]]:
    """Return the state dict of each optimizer in a checkpoint, by the optimizer's name.

    Raises:
        CheckpointError: unreadable, or of other optimizers.
    """
    records = found.record["optimizers"]
    if records.keys() != state.optimizers.keys():
        raise CheckpointError(
            f"{found.name} holds the optimizers {', '.join(records)}, and here are "
            f"{', '.join(state.optimizers)}. Name them as when it was trained."
        )
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    if state.keeper is not None:
        return _states_apart(found, state, state.keeper)
    by_name = dict(state.model.named_parameters())
    like = {key: by_name[of] for key in found.stored("optimizer") if (of := _of(key)) in by_name}
    # Copied, since in the file they lie at any address, and the last bit of a dot product may hang
    # on that.
    tensors = {k: _copied(v) for k, v in found.tensors("optimizer", like).items()}
    states = {}
    for called, optimizer in state.optimizers.items():
        own = {key: value for key, value in tensors.items() if key.startswith(f"{called}/")}
        slots: dict[str, dict[str, Any]] = {}
        for key, value in _slots(found, own, records[called]["values"]).items():
            name, _, slot = key.removeprefix(f"{called}/").rpartition("/")
            slots.setdefault(name, {})[slot] = value
        states[called] = _fitting_state(found, records[called], optimizer, (names, slots))
    return states


def load_states(found: Opened, state: State, states: Mapping[str, dict[str, Any]]) -> None:
    """Load what `fitting_states` returned into the optimizers."""
    if state.keeper is None:
        for name, loaded in states.items():
            load_optimizer(state.optimizers[name], loaded)
        return
    for called, loaded in states.items():
        groups = zip(state.optimizers[called].param_groups, loaded["options"], strict=True)
        for group, options in groups:
            group.update(options)
        with found.reading("optimizer") as read:
            for name, keys in loaded["slots"].items():
                slots = {slot: read(key, None) for slot, key in keys.items()}
                state.keeper.put_slots(called, name, slots)


def _of(key: str) -> str:
    """Return the parameter that a tensor of an optimizer belongs to: `optimizer/PARAMETER/slot`."""
    return key.partition("/")[2].rpartition("/")[0]


def _copied(tensor: Tensor) -> Tensor:
    """Copy what lies in the file; a box of a tensor was copied as it was read."""
    return tensor if is_cut(tensor) else tensor.clone()


def _states_apart(found: Opened, state: State, keeper: Keeper) -> dict[str, dict[str, Any]]:
    """Return options by group, and the names of the tensors of each parameter, unread."""
    states: dict[str, dict[str, Any]] = {}
    shapes = keeper.described()
    for called, optimizer in state.optimizers.items():
        record, groups = found.record["optimizers"][called], keeper.groups(called)
        _check_class(found, record, optimizer)
        if record["values"]:
            raise CheckpointError(
                f"{found.name} holds state of {record['class']} that is no tensor, and the way in "
                "which processes share this run takes tensors alone. Go on as it was trained."
            )
        known = _options_by_name(record)
        options = [
            {
                key: value
                for name in names
                for key, value in _typed_like(
                    found, optimizer, group, _of_name(found, known, name)
                ).items()
            }
            for names, group in zip(groups, optimizer.param_groups, strict=True)
        ]
        slots: dict[str, dict[str, str]] = {}
        for key, stored in found.stored("optimizer").items():
            name = _of(key)
            if not key.startswith(f"{called}/") or name not in shapes:
                continue
            slot = key.rpartition("/")[2]
            if stored.shape != shapes[name].shape and (slot in _WALKED or any(stored.shape)):
                raise CheckpointError(
                    f"{found.name} holds {slot} of {name} as {stored.shape}, and {name} is "
                    f"{shapes[name].shape}. Build the model as it was trained."
                )
            slots.setdefault(name, {})[slot] = key
        states[called] = {"options": options, "slots": slots}
    return states


def _fitting_state(
    found: Opened,
    record: dict[str, Any],
    optimizer: torch.optim.Optimizer,
    known: tuple[dict[int, str], dict[str, dict[str, Any]]],
) -> dict[str, Any]:
    """Return an optimizer's state dict, which a checkpoint keys by name and torch by index."""
    names, by_name = known
    _check_class(found, record, optimizer)
    options = _options_by_name(record)
    plain = optimizer.state_dict()
    plain["state"] = {}
    for group, described in zip(optimizer.param_groups, plain["param_groups"], strict=True):
        for parameter, index in zip(group["params"], described["params"], strict=True):
            name = names[id(parameter)]
            own = _of_name(found, options, name)
            described.update(_typed_like(found, optimizer, described, own))
            if name in by_name:
                _check_slots(found, optimizer, parameter, (name, by_name[name]))
                plain["state"][index] = _laid_out_like(parameter, by_name[name])
    return plain


def _check_class(found: Opened, record: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    if record.get("class") != kind_of(optimizer):
        raise CheckpointError(
            f"{found.name} holds the state of {record.get('class')}, and the optimizer here is "
            f"{type(optimizer).__name__}. Use the one it was trained with, or begin another run "
            f"with the weights alone: Task(init={str(found.path)!r})."
        )


def _options_by_name(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: each["options"] for each in record["groups"] for name in each["names"]}


def _of_name(found: Opened, options: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in options:
        raise CheckpointError(f"{found.name} has no optimizer state for {name}.")
    return options[name]


def _slots(found: Opened, tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """Return the slots of an optimizer, those with tensors in lists put together again."""
    try:
        rest = {key: restore(value, tensors) for key, value in values.items()}
    except KeyError as error:
        raise CheckpointError(
            f"{found.path} cannot be read: it lacks the tensor {error}."
        ) from error
    inner = {name for value in values.values() for name in names_in(value)}
    return {**{key: value for key, value in tensors.items() if key not in inner}, **rest}


def load_optimizer(optimizer: torch.optim.Optimizer, loaded: dict[str, Any]) -> None:
    """Load the state, each tensor in the type that it had.

    torch casts to the parameter's type what it knows no better, even what it made in another one:
    NAdam's product of momenta is fp32 beside a weight in fp64.
    """
    optimizer.load_state_dict(loaded)
    by_index = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    for index, slots in loaded["state"].items():
        now = optimizer.state[by_index[index]]
        for slot, value in slots.items():
            if isinstance(value, Tensor) and now[slot].dtype != value.dtype:
                now[slot] = value.to(now[slot].device)


def _laid_out_like(parameter: Tensor, slots: dict[str, Any]) -> dict[str, Any]:
    """Return state whose tensors lie in memory as the parameter does (channels last, say).

    A fused kernel walks parameter, gradient and state side by side, whatever their strides.
    """
    return {
        slot: torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for slot, value in slots.items()
    }


def _check_slots(
    found: Opened,
    optimizer: torch.optim.Optimizer,
    parameter: Tensor,
    named: tuple[str, dict[str, Any]],
) -> None:
    """Check the slots that torch's fused kernels walk beside the parameter without looking."""
    name, slots = named
    if not _is_of_torch(optimizer):
        return
    for slot, value in slots.items():
        if slot == "step" and isinstance(value, Tensor):
            fits = value.numel() == 1 and value.dtype.is_floating_point
        else:
            like = isinstance(value, Tensor) and value.shape == parameter.shape
            fits = slot not in _WALKED or (like and value.dtype == parameter.dtype)
        if not fits:
            raise CheckpointError(
                f"{found.name} holds {slot} of {name}, which does not fit {name}: "
                f"{parameter.dtype} of {tuple(parameter.shape)}. Build the model as it was trained."
            )


def _is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    return type(optimizer).__module__.partition(".")[0] == "torch"


def _typed_like(
    found: Opened, optimizer: torch.optim.Optimizer, now: dict[str, Any], loaded: dict[str, Any]
) -> dict[str, Any]:
    """Return loaded options, with tuples where tuples stood, which JSON has not.

    Optimizers of others count in a group what they put there with the first step.

    Raises:
        CheckpointError: the optimizer has no such option, or none of that kind.
    """
    typed = {}
    for name, value in loaded.items():
        own = now.get(name)
        typed[name] = tuple(value) if isinstance(own, tuple) and isinstance(value, list) else value
        if name not in now and isinstance(value, (int, float)) and not _is_of_torch(optimizer):
            continue
        if name not in now or name in LEFT_OUT or not _like(typed[name], own):
            raise CheckpointError(
                f"{found.name} holds the optimizer's option {shown(name)} as {shown(value)}, which "
                "the optimizer here does not take. Use the one it was trained with."
            )
    return typed


def _like(value: Any, own: Any) -> bool:
    """Say whether a value is of the kind that an option has; null and yes or no stand for auto."""
    if isinstance(own, tuple):
        same = isinstance(value, tuple) and len(value) == len(own)
        return same and all(map(_like, value, own))
    if own is None:
        return value is None or isinstance(value, (bool, int, float, str))
    if isinstance(own, bool):
        return value is None or isinstance(value, bool)
    if isinstance(own, (int, float)):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(own)
