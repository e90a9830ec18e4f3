"""Read the state of optimizers: by name in a checkpoint, by index in torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import (
    ShardedStateProvider,
    TensorShard,
    is_sharded,
)
from surestep.engine.state.state import State
from surestep.record.checkpoint.encoding import as_json, collect_shards
from surestep.record.checkpoint.optimizer_slots import flatten, names_in, restore
from surestep.record.checkpoint.options import (
    SavedOptions,
    encode_built,
    encode_options,
    is_of_torch,
    typed_like,
)
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.schema import format_value

_WALKED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")


def match_optimizer_states(found: CheckpointReader, state: State) -> dict[str, dict[str, Any]]:
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
    like = {key: by_name[of] for key in found.entries("optimizer") if (of := _of(key)) in by_name}
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
        _check_class(found, records[called], optimizer)
        saved = SavedOptions(found, called, own)
        states[called] = _fitting_state(saved, optimizer, _built(state, called), (names, slots))
    return states


def load_states(
    found: CheckpointReader, state: State, states: Mapping[str, dict[str, Any]]
) -> None:
    """Load what `fitting_states` returned into the optimizers."""
    if state.keeper is None:
        for name, loaded in states.items():
            load_optimizer(state.optimizers[name], loaded)
        return
    for called, loaded in states.items():
        groups = zip(state.optimizers[called].param_groups, loaded["options"], strict=True)
        for group, options in groups:
            group.update(options)
        with found.open_tensors("optimizer") as read:
            for name, keys in loaded["slots"].items():
                slots = {slot: read(key, None) for slot, key in keys.items()}
                state.keeper.put_slots(called, name, slots)


def _of(key: str) -> str:
    """Return the parameter that a tensor of an optimizer belongs to: `optimizer/PARAMETER/slot`."""
    return key.partition("/")[2].rpartition("/")[0]


def _copied(tensor: Tensor) -> Tensor:
    """Copy what lies in the file; a box of a tensor was copied as it was read."""
    return tensor if is_sharded(tensor) else tensor.clone()


def _states_apart(
    found: CheckpointReader, state: State, keeper: ShardedStateProvider
) -> dict[str, dict[str, Any]]:
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
        saved, built = SavedOptions(found, called, {}), _built(state, called)
        options = [
            {
                key: value
                for name in names
                for key, value in typed_like(found, optimizer, group, saved.of(name, own)).items()
            }
            for names, group, own in zip(groups, optimizer.param_groups, built, strict=True)
        ]
        slots: dict[str, dict[str, str]] = {}
        for key, stored in found.entries("optimizer").items():
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


def _built(state: State, called: str) -> list[dict[str, Any]]:
    """Return the options that each group of an optimizer was built with, encoded."""
    return [encode_built(state, called, each) for each in state.built_options[called]]


def _fitting_state(
    saved: SavedOptions,
    optimizer: torch.optim.Optimizer,
    built: list[dict[str, Any]],
    known: tuple[dict[int, str], dict[str, dict[str, Any]]],
) -> dict[str, Any]:
    """Return an optimizer's state dict, which a checkpoint keys by name and torch by index."""
    names, by_name = known
    found, plain = saved.found, optimizer.state_dict()
    plain["state"] = {}
    groups = zip(optimizer.param_groups, plain["param_groups"], built, strict=True)
    for group, described, own in groups:
        for parameter, index in zip(group["params"], described["params"], strict=True):
            name = names[id(parameter)]
            described.update(typed_like(found, optimizer, described, saved.of(name, own)))
            if name in by_name:
                _check_slots(found, optimizer, parameter, (name, by_name[name]))
                plain["state"][index] = _laid_out_like(parameter, by_name[name])
    return plain


def _check_class(
    found: CheckpointReader, record: dict[str, Any], optimizer: torch.optim.Optimizer
) -> None:
    if record.get("class") != optimizer_class_name(optimizer):
        raise CheckpointError(
            f"{found.name} holds the state of {record.get('class')}, and the optimizer here is "
            f"{type(optimizer).__name__}. Use the one it was trained with, or begin another run "
            f"with the weights alone: Task(init={str(found.path)!r})."
        )


def _slots(
    found: CheckpointReader, tensors: dict[str, Tensor], values: dict[str, Any]
) -> dict[str, Any]:
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
    if is_of_torch(optimizer):
        _fit_options(optimizer)


# What torch keeps for an option only where it is on, and begins as zeros.
_SLOTS_OF = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg", "momentum": "momentum_buffer"}


def _fit_options(optimizer: torch.optim.Optimizer) -> None:
    """Fit loaded state to options that were changed, and put step counts where torch wants them.

    torch makes a slot in the first step alone, never shortens the history of L-BFGS, and reads a
    step count on a device in each step where the kernel is not fused.
    """
    for group in optimizer.param_groups:
        on = [slot for option, slot in _SLOTS_OF.items() if group.get(option)]
        # SGD has no state before its first momentum, which dampening makes the gradient itself.
        begins = group.get("dampening") == 0
        for parameter in group["params"] if on else ():
            slots = optimizer.state.get(parameter, {})
            for slot in on if slots or begins else ():
                if slots.get(slot) is None:
                    optimizer.state[parameter][slot] = torch.zeros_like(parameter)
        if not (group.get("fused") or group.get("capturable")):
            for parameter in group["params"]:
                step = optimizer.state.get(parameter, {}).get("step")
                if isinstance(step, Tensor) and step.device.type != "cpu":
                    optimizer.state[parameter]["step"] = step.cpu()
        if "history_size" in group:
            for slots in optimizer.state.values():
                _shorten(slots, group["history_size"])


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
    found: CheckpointReader,
    optimizer: torch.optim.Optimizer,
    parameter: Tensor,
    named: tuple[str, dict[str, Any]],
) -> None:
    """Check the slots that torch's fused kernels walk beside the parameter without looking."""
    name, slots = named
    if not is_of_torch(optimizer):
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


def _shorten(slots: dict[str, Any], history: int) -> None:
    """Keep the newest moves of L-BFGS; its work list, which each step overwrites, is as long."""
    for name in ("old_dirs", "old_stps", "ro"):
        if isinstance(slots.get(name), list):
            del slots[name][:-history]
    if len(slots.get("al") or ()) != history:
        slots.pop("al", None)


def encode_optimizer(
    called: str, state: State
) -> tuple[Mapping[str, Tensor | TensorShard], dict[str, Any]]:
    """Return an optimizer's state: tensors by "optimizer/parameter/slot", and the rest."""
    optimizer = state.optimizers[called]
    if state.keeper is None:
        names = {id(parameter): name for name, parameter in state.model.named_parameters()}
        return encode_state(called, optimizer, state, names)
    return _encode_sharded_state(called, optimizer, state, state.keeper)


def encode_state(
    called: str, optimizer: torch.optim.Optimizer, state: State, names: Mapping[int, str]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state as `encode_optimizer` does; `names` has them by parameter id.

    Raises:
        CheckpointError: it holds what a checkpoint cannot.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for parameter, slots in optimizer.state.items():
        if id(parameter) not in names:
            raise _homeless(optimizer, f"state under {format_value(parameter)}")
        name = names[id(parameter)]
        for slot, value in slots.items():
            key = f"{called}/{name}/{slot}"
            flat = flatten(key, value, tensors, as_json)
            if not isinstance(value, Tensor):
                values[key] = flat
    groups = [
        {"names": [names[id(parameter)] for parameter in group["params"]], **options}
        for group, options in zip(
            optimizer.param_groups, encode_options(state, called, tensors), strict=True
        )
    ]
    return tensors, {"class": optimizer_class_name(optimizer), "values": values, "groups": groups}


def _encode_sharded_state(
    called: str, optimizer: torch.optim.Optimizer, state: State, keeper: ShardedStateProvider
) -> tuple[dict[str, TensorShard], dict[str, Any]]:
    slots = ((f"{called}/{name}/{slot}", each) for name, slot, each in keeper.slots(called))
    tensors: dict[str, Tensor] = {}
    named = zip(keeper.groups(called), encode_options(state, called, tensors), strict=True)
    groups = [{"names": list(names), **options} for names, options in named]
    if tensors:
        raise _homeless(optimizer, f"a tensor in its options, {next(iter(tensors))!r}")
    return collect_shards(slots), {
        "class": optimizer_class_name(optimizer),
        "values": {},
        "groups": groups,
    }


def optimizer_class_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the class by which the state is known: torch's, where another one stands for it."""
    return str(getattr(optimizer, "state_class_name", type(optimizer).__name__))


def _homeless(optimizer: torch.optim.Optimizer, what: str) -> CheckpointError:
    return CheckpointError(
        f"{type(optimizer).__name__} keeps {what}, which belongs to no parameter and would be "
        "lost. Keep it in optimizer.state[parameter], or as a number in its group."
    )
