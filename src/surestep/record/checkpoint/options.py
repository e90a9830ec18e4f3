"""The options of parameter groups: how a checkpoint holds them, and which of them are loaded.

A checkpoint holds the options of its moment and those that the optimizer was built with. An option
that is built otherwise now was changed by the user, whose value counts. Any other one is loaded:
the optimizer may have changed it itself.
"""

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.model.frozen_weights import fingerprint
from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.state.state import State
from surestep.record.checkpoint.encoding import NoPlainForm, decode, encode
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.schema import format_value

LEFT_OUT = ("params", "lr")  # the rate is a function of the steps taken, written before each
_CONSTANTS = (type, torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)


def encode_options(state: State, called: str, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Return the options of each group as a checkpoint holds them: "options" and "built".

    Args:
        state: whose optimizer.
        called: the optimizer's name.
        tensors: receives the tensors among the options, by "OPTIMIZER/$groups/INDEX/OPTION".

    Raises:
        CheckpointError: an option has no form in JSON or safetensors.
    """
    found, optimizer, built = [], state.optimizers[called], state.built_options[called]
    for index, group in enumerate(optimizer.param_groups):
        left_out = _left_out(state, called)
        options = {}
        for name, value in group.items():
            if name in left_out or _is_constant(value):
                continue
            options[name] = _encode(optimizer, f"{called}/$groups/{index}/{name}", value, tensors)
        first = encode_built(state, called, built[index]) if index < len(built) else {}
        found.append({"options": options, "built": first})
    return found


def encode_built(state: State, called: str, built: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a group was built with as JSON; of tensors, their fingerprints."""
    left_out = _left_out(state, called)
    options = {
        name: value
        for name, value in built.items()
        if name not in left_out and not _is_constant(value)
    }
    found = {}
    for name, value in options.items():
        tensors: dict[str, Tensor] = {}
        plain = _encode(state.optimizers[called], name, value, tensors)
        found[name] = [plain, *map(fingerprint, tensors.values())] if tensors else plain
    return found


def _encode(
    optimizer: torch.optim.Optimizer, key: str, value: Any, tensors: dict[str, Tensor]
) -> Any:
    try:
        return encode(key, value, tensors)
    except NoPlainForm as error:
        raise CheckpointError(
            f"{type(optimizer).__name__} keeps {error} in its options, which has no form in JSON "
            "or safetensors. Keep numbers, text, tensors, or lists of those there."
        ) from error


def _left_out(state: State, called: str) -> tuple[str, ...]:
    of_its_own = getattr(state.optimizers[called], "left_out", ())
    return (*LEFT_OUT, *of_its_own, *state.scheduled.get(called, ()))


def _is_constant(value: Any) -> bool:
    """Say whether a value is one that no step changes, so that the one built is right."""
    return callable(value) or isinstance(value, _CONSTANTS)


class SavedOptions:
    """The options of one optimizer in a checkpoint, by parameter."""

    def __init__(self, found: CheckpointReader, called: str, tensors: Mapping[str, Tensor]) -> None:
        self.found, self.called, self.tensors = found, called, tensors
        groups = found.record["optimizers"][called]["groups"]
        self.by_name = {name: group for group in groups for name in group["names"]}

    def of(self, name: str, built: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options to load into a group that holds a parameter.

        Args:
            name: of the parameter.
            built: what the group is built with now, encoded.

        Raises:
            CheckpointError: the checkpoint does not know the parameter, or lacks a tensor.
        """
        if name not in self.by_name:
            raise CheckpointError(f"{self.found.name} has no optimizer state for {name}.")
        group = self.by_name[name]
        before = group["built"]
        try:
            return {
                key: decode(value, self.tensors)
                for key, value in group["options"].items()
                if key not in before or key not in built or before[key] == built[key]
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{self.found.path} cannot be read: it lacks {error}.") from error


def typed_like(
    found: CheckpointReader,
    optimizer: torch.optim.Optimizer,
    now: Mapping[str, Any],
    loaded: dict[str, Any],
) -> dict[str, Any]:
    """Return loaded options in the types that the group has, which JSON has not all of.

    Optimizers of others put options of their own into a group in the first step.

    Raises:
        CheckpointError: the optimizer has no such option, or none of that kind.
    """
    typed = {}
    for name, value in loaded.items():
        own = now.get(name)
        typed[name] = tuple(value) if isinstance(own, tuple) and isinstance(value, list) else value
        if isinstance(value, Tensor):
            like = own if isinstance(own, Tensor) else next(parameters_of(optimizer))
            typed[name] = value.to(like.device)
        if name not in now and name not in LEFT_OUT and not is_of_torch(optimizer):
            continue
        if name not in now or name in LEFT_OUT or not _like(typed[name], own):
            raise CheckpointError(
                f"{found.name} holds the optimizer's option {format_value(name)} as "
                f"{format_value(value)}, which "
                "the optimizer here does not take. Use the one it was trained with."
            )
    return typed


def is_of_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Say whether an optimizer is one of torch's own, or ours, whose state is torch's."""
    return type(optimizer).__module__.partition(".")[0] in ("torch", "surestep")


def _like(value: Any, own: Any) -> bool:
    """Say whether a value is of the kind that an option has; null and yes or no stand for auto."""
    if isinstance(own, tuple):
        same = isinstance(value, tuple) and len(value) == len(own)
        return same and all(map(_like, value, own))
    if own is None:
        return value is None or isinstance(value, (bool, int, float, str, Tensor))
    if isinstance(own, bool):
        return value is None or isinstance(value, bool)
    number = (int, float, np.number, Tensor)  # a sum that began as 0 may be a tensor now
    if isinstance(own, (int, float, np.number)):
        return isinstance(value, number) and not isinstance(value, bool)
    if isinstance(own, Tensor):
        return isinstance(value, number) and not isinstance(value, bool)
    return type(value) is type(own)
