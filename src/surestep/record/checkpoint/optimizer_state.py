"""Save and load the state of optimizers: by parameter name in a checkpoint, by index in torch.

Of the options of parameter groups, a checkpoint has those that the optimizer changed itself.
The others come from the config.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surestep.base.errors import CheckpointError, TaskError
from surestep.engine.distributed.shards import ShardedStateProvider, TensorShard, is_sharded
from surestep.engine.optim.param_groups import parameters_of, wrapped_optimizers
from surestep.engine.state.state import State, copied_options
from surestep.record.checkpoint.encoding import collect_shards, decode, encode
from surestep.record.checkpoint.manifest import RECORD, checkpoint_error
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.schemas import format_value

_PARAMETER_LIKE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")
_NEVER_SAVED = ("params", "lr")  # the learning rate is set from the schedule before each step
_OWN_VALUES = "$schedule"  # of a group: what the user's code has set beside the schedule
_CONSTANTS = (type, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
_NUMBERS = (int, float, np.number, Tensor)
# Slots that torch creates only if an option is set, filled with zeros.
_OPTION_SLOTS = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg", "momentum": "momentum_buffer"}


def encode_optimizer(
    called: str, state: State
) -> tuple[Mapping[str, Tensor | TensorShard], dict[str, Any]]:
    """Return an optimizer's tensors by "OPTIMIZER/PARAMETER/SLOT", and the rest as JSON."""
    optimizer, keeper = state.optimizers[called], state.keeper
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    options = _encode_options(called, state, tensors)
    if keeper is not None:
        if tensors:
            raise _no_parameter_error(
                optimizer, f"a tensor in its options, {next(iter(tensors))!r}"
            )
        slots = ((f"{called}/{name}/{slot}", shard) for name, slot, shard in keeper.slots(called))
        sharded, members = collect_shards(slots), [list(group) for group in keeper.groups(called)]
    else:
        names = _names_of_parameters(optimizer, state)
        for path, parameter, slot, value in _slots_of(optimizer):
            if id(parameter) not in names:
                raise _no_parameter_error(optimizer, f"state under {format_value(parameter)}")
            key = f"{called}/{names[id(parameter)]}/{path}{slot}"
            encoded = encode(key, value, tensors)
            if key not in tensors:
                values[key] = encoded
        members = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    groups = [
        {"names": names_of_group, "options": changed}
        for names_of_group, changed in zip(members, options, strict=True)
    ]
    record = {"class": _class_name(optimizer), "values": values, "groups": groups}
    return (tensors if keeper is None else sharded), record


def _names_of_parameters(optimizer: torch.optim.Optimizer, state: State) -> dict[int, str]:
    """Return the names of the model's parameters by their ids.

    Raises:
        TaskError: the model no longer has a parameter of the optimizer.
    """
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    for parameter in parameters_of(optimizer):
        lost = state.built_names.get(id(parameter))
        if lost is not None and id(parameter) not in names:
            raise TaskError(
                f"At step {state.progress.step}, model.{lost}, which {_class_name(optimizer)} "
                "trains, is not in the model: it was replaced or removed while training. Nothing "
                "would train a new one, so no checkpoint can be saved or loaded. Change the model "
                "before you make the Task, or begin another run with the changed model."
            )
    return names


def _slots_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield the state: where it is in the optimizer, the parameter, the name and the value."""
    seen: list[Any] = []
    wrapped = {f"{path}.": one for path, one in wrapped_optimizers(optimizer).items()}
    for path, one in {"": optimizer, **wrapped}.items():
        if not any(one.state is state for state in seen):
            seen.append(one.state)
            for parameter, slots in one.state.items():
                yield from ((path, parameter, slot, value) for slot, value in slots.items())


def _encode_options(called: str, state: State, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return the options of each group that are not as they were built."""
    never, found = _never_saved(called, state), []
    built, schedule = state.built_options[called], state.schedules.get(called)
    for index, group in enumerate(state.optimizers[called].param_groups):
        first = built[index] if index < len(built) else {}
        changed = {}
        for name, value in group.items():
            if name in never or callable(value) or isinstance(value, _CONSTANTS):
                continue
            if schedule is not None:
                value = schedule.unscheduled(index, name, value)
            key, own = f"{called}/$groups/{index}/{name}", dict[str, Tensor]()
            encoded = encode(key, value, own)
            if name not in first or not _is_built(key, encoded, own, first[name]):
                changed[name] = encoded
                tensors |= own
        if schedule is not None and (own_values := schedule.changes(index)):
            changed[_OWN_VALUES] = encode("", own_values, {})
        found.append(changed)
    return found


def _never_saved(called: str, state: State) -> tuple[str, ...]:
    left_out = getattr(state.optimizers[called], "left_out", ())
    return (*_NEVER_SAVED, *left_out)


def _is_built(key: str, encoded: Any, tensors: Mapping[str, Tensor], built: Any) -> bool:
    """Return whether an encoded option is as it was built."""
    before: dict[str, Tensor] = {}
    if encoded != encode(key, built, before):
        return False
    return all(torch.equal(now, before[name].to(now.device)) for name, now in tensors.items())


def _class_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the class that the state belongs to, which a replacement names itself."""
    return str(getattr(optimizer, "state_class_name", type(optimizer).__name__))


def _no_parameter_error(optimizer: torch.optim.Optimizer, what: str) -> CheckpointError:
    return CheckpointError(
        f"{type(optimizer).__name__} keeps {what}, which belongs to no parameter and would be "
        "lost. Keep it in optimizer.state[parameter], or as a number in its group."
    )


def match_optimizer_states(found: CheckpointReader, state: State) -> dict[str, dict[str, Any]]:
    """Return what `load_states` loads into each optimizer, by the optimizer's name."""
    records = found.record["optimizers"]
    if records.keys() != state.optimizers.keys():
        raise CheckpointError(
            f"{found.name} holds the optimizers {', '.join(records)}, and here are "
            f"{', '.join(state.optimizers)}. Name them as when it was trained."
        )
    by_name = dict(state.model.named_parameters())
    tensors: dict[str, Tensor] = {}
    if state.keeper is None:
        keys = found.entries("optimizer")
        like = {key: by_name[name] for key in keys if (name := _parameter_of(key)) in by_name}
        tensors = found.tensors("optimizer", like)
    states = {}
    for called in state.optimizers:
        match = _OptimizerMatch(found, called, state)
        if state.keeper is not None:
            states[called] = match.sharded(state.keeper) | {_OWN_VALUES: match.own_values}
            continue
        # Clone: tensors of a mapped file can have any alignment, which can change a last digit.
        own = {
            key: tensor if is_sharded(tensor) else tensor.clone()
            for key, tensor in tensors.items()
            if key.startswith(f"{called}/")
        }
        states[called] = match.by_index(own) | {_OWN_VALUES: match.own_values}
    return states


def _parameter_of(key: str) -> str:
    """Return PARAMETER of "OPTIMIZER/PARAMETER/SLOT"."""
    return key.partition("/")[2].rpartition("/")[0]


class _OptimizerMatch:
    """An optimizer, and its state in a checkpoint."""

    def __init__(self, found: CheckpointReader, called: str, state: State) -> None:
        self.found = found
        self.called = called
        self.state = state
        self.optimizer = state.optimizers[called]
        self.record = found.record["optimizers"][called]
        self.own_values: list[dict[str, float]] = [{} for _ in self.optimizer.param_groups]
        if self.record["class"] != _class_name(self.optimizer):
            raise CheckpointError(
                f"{found.name} holds the state of {self.record['class']}, and the optimizer here "
                f"is {type(self.optimizer).__name__}. Use the one it was trained with, or begin "
                f"another run with the weights alone: Task(init={str(found.path)!r})."
            )

    def by_index(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return the state dict as torch has it."""
        values = decode(self.found.path, self.record["values"], tensors)
        saved = self._saved_options(tensors)
        slots: dict[str, dict[str, Any]] = {}
        for key, value in {**tensors, **values}.items():
            slots.setdefault(_parameter_of(key), {})[key.rpartition("/")[2]] = value
        names = _names_of_parameters(self.optimizer, self.state)
        plain = _state_dict(self.optimizer)
        plain["state"] = {}
        for number, described in enumerate(plain["param_groups"]):
            parameters = self.optimizer.param_groups[number]["params"]
            members = [names[id(parameter)] for parameter in parameters]
            described.update(self._options(number, members, saved))
            for parameter, name, index in zip(
                parameters, members, described["params"], strict=True
            ):
                if name in slots:
                    self._check_slots(parameter, name, slots[name])
                    plain["state"][index] = _with_strides_of(parameter, slots[name])
        return plain

    def sharded(self, keeper: ShardedStateProvider) -> dict[str, Any]:
        """Return options by group, and the names of the tensors of each parameter, unread."""
        if self.record["values"]:
            raise CheckpointError(
                f"{self.found.name} holds state of {self.record['class']} that is not a tensor, "
                "and the strategy of this run loads tensors only. Resume with the strategy it was "
                "trained with."
            )
        shapes = keeper.described()
        slots: dict[str, dict[str, str]] = {}
        for key, stored in self.found.entries("optimizer").items():
            name, slot = _parameter_of(key), key.rpartition("/")[2]
            if not key.startswith(f"{self.called}/") or name not in shapes:
                continue
            shape = shapes[name].shape
            if stored.shape != shape and (slot in _PARAMETER_LIKE or any(stored.shape)):
                raise CheckpointError(
                    f"{self.found.name} holds {slot} of {name} as {stored.shape}, and {name} is "
                    f"{shape}. Build the model as it was trained."
                )
            slots.setdefault(name, {})[slot] = key
        saved = self._saved_options({})
        groups = enumerate(keeper.groups(self.called))
        options = [self._options(number, names, saved) for number, names in groups]
        return {"options": options, "slots": slots}

    def _saved_options(self, tensors: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
        """Return the saved options by parameter: the groups may be others now."""
        by_name: dict[str, dict[str, Any]] = {}
        for group in self.record["groups"]:
            options = decode(self.found.path, group["options"], tensors)
            by_name |= dict.fromkeys(group["names"], options)
        return by_name

    def _options(
        self, number: int, names: Sequence[str], saved: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the options to load into a group of parameters: as built, then as saved.

        Other optimizers than torch's may add options in their first step.

        Raises:
            CheckpointError: the optimizer has no such option, or one of a different type.
        """
        group, never = self.optimizer.param_groups[number], _never_saved(self.called, self.state)
        built = copied_options(self.state.built_options[self.called][number])
        options = {name: value for name, value in built.items() if name not in never}
        for parameter in names:
            if parameter not in saved:
                raise CheckpointError(f"{self.found.name} has no optimizer state for {parameter}.")
            for name, value in saved[parameter].items():
                if name == _OWN_VALUES:
                    self.own_values[number] = self._check_own_values(value)
                    continue
                may_be_new = name not in group and not _is_of_torch(self.optimizer)
                fits = may_be_new or (name in group and _has_type(value, group[name]))
                if name in _NEVER_SAVED or not fits:
                    raise CheckpointError(
                        f"{self.found.name} holds the optimizer's option {format_value(name)} as "
                        f"{format_value(value)}, which the optimizer here does not take. Use the "
                        "one it was trained with."
                    )
                if isinstance(value, Tensor):
                    now = group.get(name)
                    like = now if isinstance(now, Tensor) else next(parameters_of(self.optimizer))
                    value = value.to(like.device)
                options[name] = value
        return options

    def _check_own_values(self, values: Any) -> dict[str, float]:
        """Return values that `GroupSchedule.load` takes.

        Raises:
            CheckpointError: one is not a number.
        """
        named = values if isinstance(values, Mapping) else {}
        are_numbers = all(isinstance(value, float) for value in named.values())
        if not named or not are_numbers or not named.get("factor", 1.0):
            raise checkpoint_error(self.found.path, RECORD, f"its {_OWN_VALUES} are not numbers")
        return dict(named)

    def _check_slots(self, parameter: Tensor, name: str, slots: Mapping[str, Any]) -> None:
        """Check the slots whose shape and dtype torch's fused kernels do not check."""
        for slot, value in slots.items() if _is_of_torch(self.optimizer) else ():
            if slot == "step" and isinstance(value, Tensor):
                fits = value.numel() == 1 and value.dtype.is_floating_point
            else:
                like = isinstance(value, Tensor) and value.shape == parameter.shape
                fits = slot not in _PARAMETER_LIKE or (like and value.dtype == parameter.dtype)
            if not fits:
                raise CheckpointError(
                    f"{self.found.name} holds {slot} of {name}, which does not fit {name}: "
                    f"{parameter.dtype} of {tuple(parameter.shape)}. Build the model as it was "
                    "trained."
                )


def _has_type(value: Any, now: Any) -> bool:
    """Return whether a value can be that of an option; None and bool mean "auto"."""
    if isinstance(now, tuple):
        same = isinstance(value, tuple) and len(value) == len(now)
        return same and all(map(_has_type, value, now))
    if now is None or isinstance(now, bool):
        plain = now is None and isinstance(value, (str, *_NUMBERS))
        return plain or value is None or isinstance(value, bool)
    if isinstance(now, _NUMBERS):  # a sum that began as 0 may be a tensor now
        return isinstance(value, _NUMBERS) and not isinstance(value, bool)
    return type(value) is type(now)


def _with_strides_of(parameter: Tensor, slots: Mapping[str, Any]) -> dict[str, Any]:
    """Return state whose tensors have the parameter's strides, which fused kernels assume."""
    return {
        slot: torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for slot, value in slots.items()
    }


def _is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer is torch's, or surestep's with the same state."""
    return type(optimizer).__module__.partition(".")[0] in ("torch", "surestep")


def load_states(
    found: CheckpointReader, state: State, states: Mapping[str, dict[str, Any]]
) -> None:
    """Load what `match_optimizer_states` returned into the optimizers."""
    for called, loaded in states.items():
        optimizer, own_values = state.optimizers[called], loaded.pop(_OWN_VALUES)
        if state.keeper is None:
            _load_optimizer(optimizer, loaded)
        else:
            for group, options in zip(optimizer.param_groups, loaded["options"], strict=True):
                group.update(options)
            with found.open_tensors("optimizer") as read:
                for name, keys in loaded["slots"].items():
                    slots = {slot: read(key, None) for slot, key in keys.items()}
                    state.keeper.put_slots(called, name, slots)
        if called in state.schedules:
            state.schedules[called].load(own_values)


def _load_optimizer(optimizer: torch.optim.Optimizer, loaded: dict[str, Any]) -> None:
    """Load a state dict, each tensor in its own dtype.

    torch casts most tensors to the parameter's dtype, also those it creates in another one: NAdam's
    product of momenta is fp32 beside an fp64 weight.
    """
    by_index = list(parameters_of(optimizer))
    if wrapped := wrapped_optimizers(optimizer):
        _load_wrapper({"": optimizer, **wrapped}, by_index, loaded)
        return
    optimizer.load_state_dict(loaded)
    for index, slots in loaded["state"].items():
        now = optimizer.state[by_index[index]]
        for slot, value in slots.items():
            if isinstance(value, Tensor) and now[slot].dtype != value.dtype:
                now[slot] = value.to(now[slot].device)
    if _is_of_torch(optimizer):
        _fit_options(optimizer)


def _state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a state dict; that of a wrapper may have any form, so it is made here."""
    if not wrapped_optimizers(optimizer):
        return optimizer.state_dict()
    number = count()
    return {
        "param_groups": [
            {**group, "params": [next(number) for _ in group["params"]]}
            for group in optimizer.param_groups
        ]
    }


def _load_wrapper(
    parts: Mapping[str, torch.optim.Optimizer],
    parameters: Sequence[Tensor],
    loaded: Mapping[str, Any],
) -> None:
    """Load a wrapper and the optimizers in it, in place: they may share groups and state."""
    for part in parts.values():
        part.state.clear()
    for group, options in zip(parts[""].param_groups, loaded["param_groups"], strict=True):
        group.update({name: value for name, value in options.items() if name != "params"})
    for index, slots in loaded["state"].items():
        parameter = parameters[index]
        for slot, value in slots.items():
            path, _, name = slot.rpartition(".")
            if path not in parts:
                path, name = "", slot
            here = value.to(parameter.device) if isinstance(value, Tensor) else value
            parts[path].state.setdefault(parameter, {})[name] = here
    for part in parts.values():
        if _is_of_torch(part):
            _fit_options(part)


def _fit_options(optimizer: torch.optim.Optimizer) -> None:
    """Fit loaded state to options that were changed, and move step counts where torch wants them.

    torch creates a slot only in the first step, never shortens the history of L-BFGS, and without
    a fused kernel reads a step count in each step, which waits if it is on a device.
    """
    for group in optimizer.param_groups:
        needed = [slot for option, slot in _OPTION_SLOTS.items() if group.get(option)]
        # SGD has no state before its first momentum, which with dampening is the gradient itself.
        begins = group.get("dampening") == 0
        for parameter in group["params"]:
            slots = optimizer.state.get(parameter, {})
            for slot in needed if slots or begins else ():
                if slots.get(slot) is None:
                    optimizer.state[parameter][slot] = torch.zeros_like(parameter)
            step = slots.get("step")
            on_device = isinstance(step, Tensor) and step.device.type != "cpu"
            if on_device and not (group.get("fused") or group.get("capturable")):
                optimizer.state[parameter]["step"] = step.cpu()
            if "history_size" in group:
                for name in ("old_dirs", "old_stps", "ro"):
                    if isinstance(slots.get(name), list):
                        del slots[name][: -group["history_size"]]
                if len(slots.get("al") or ()) != group["history_size"]:
                    slots.pop("al", None)  # a work list, which each step overwrites
