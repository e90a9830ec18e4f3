"""FSDP shards the model as one unit, because no block is wrapped on its own.

FSDP gathers the parameters of one unit at a time. If the wrap policy names a class that the model
does not contain, or there is no policy and no block was wrapped before, the full model is one unit.
Each forward pass gathers all its parameters at once, so the memory that sharding should save is
needed anyway, and nothing overlaps with the computation.

Ignore it if all parameters fit on each GPU. A model is reported only if all its parts are visible.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html

Wrong:

    from functools import partial

    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(8)])


    torch.distributed.init_process_group("gloo")
    layers = {nn.TransformerEncoderLayer}
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)
    print(FSDP(Net(), auto_wrap_policy=policy))

Right:

    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy


    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(8)])


    torch.distributed.init_process_group("gloo")
    print(FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block})))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe, options_of
from surestep.doctor.source.values import (
    Call,
    Class,
    Collection,
    Constant,
    Function,
    Instance,
    Operation,
    Symbol,
    Value,
    last_name,
    walk,
)
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import nn

SEVERITY = "warning"
FIX = "Wrap each block first, with the class of the blocks in ModuleWrapPolicy or fully_shard()."
_WRAPPERS = ("FullyShardedDataParallel", "FSDP", "fully_shard")
# FullyShardedDataParallel needs a GPU; fully_shard() does not.
_POLICIES = ("transformer_auto_wrap_policy", "ModuleWrapPolicy")


def check(program: Program) -> Iterator[Problem]:
    """Find wrap policies that match no part of a model, and models without wrapped blocks."""
    for trace in program.traces:
        wrappings = [
            (event, event.call)
            for event in trace.events
            if event.call is not None and event.call.name in _WRAPPERS
        ]
        for event, call in wrappings:
            models = options_of(call.argument(0, "module"))
            if len(models) != 1 or not isinstance(models[0], Instance):
                continue
            if call.has_unknown_arguments or not call.path.startswith("torch."):
                continue
            parts = _find_parts(models[0])
            policy = call.argument(-1, "auto_wrap_policy")
            named = [] if policy is None else _classes_of(policy)
            if parts is None:
                continue
            if named and not any(_matches(part, cls) for part in parts for cls in named):
                names = ", ".join(f"`{last_name(cls)}`" for cls in named)
                yield at_event(event, f"The policy wraps {names}, and the model has no such part.")
            elif (
                policy is None
                and len(wrappings) == 1
                and _has_blocks(parts)
                and not _wraps_otherwise(trace)
            ):
                yield at_event(
                    event, f"`{describe(call)}` makes one unit of all blocks of the model."
                )


def _wraps_otherwise(trace: Trace) -> bool:
    calls = (event.call for event in trace.events)
    names = ("wrap", "auto_wrap", "enable_wrap", "apply", "policy")
    return any(call is not None and call.name in names for call in calls)


def _classes_of(policy: Value) -> list[Value]:
    """Return the classes that a policy names; nothing if it is of another kind."""
    if not isinstance(policy, Call):
        return []
    is_partial = policy.name == "partial" and policy.args
    name = last_name(policy.args[0]) if is_partial else policy.name
    if name not in _POLICIES:
        return []
    position = -1 if is_partial else 0
    given = policy.argument(position, "transformer_layer_cls") or policy.argument(
        position, "module_classes"
    )
    if not isinstance(given, Collection) or not given.is_complete:
        return []
    is_known = all(isinstance(cls, Class | Symbol) for cls in given.elements)
    return list(given.elements) if is_known else []


def _find_parts(model: Instance) -> list[Value] | None:
    """Return all modules of a model; None if some cannot be seen."""
    parts: list[Value] = []
    waiting: list[Value] = [model]
    while waiting:
        value = waiting.pop()
        if any(value is part for part in parts):
            continue
        match value:
            case Instance():
                parts.append(value)
                waiting.extend(value.attributes.values())
            case Call(path=path) if path.startswith("torch.nn."):
                parts.append(value)
                waiting.extend(value.arguments)
            case Collection() | Operation():
                waiting.extend(value.inputs)
            case Call(path="range" | "len" | "int" | "float"):
                continue
            case Constant() | Function() | Symbol():
                continue
            case _:
                return None
    return parts


def _matches(part: Value, cls: Value) -> bool:
    if isinstance(part, Instance):
        bases = {path.rpartition(".")[2] for path in part.cls.outside_bases}
        return any(base is cls for base in part.cls.lineage()) or last_name(cls) in bases
    return last_name(part) == last_name(cls)


def _has_blocks(parts: list[Value]) -> bool:
    """Return whether a list of modules of the project is made in a loop."""
    lists = (part for part in parts if last_name(part) in ("ModuleList", "Sequential"))
    inner = (part for made in lists for part in walk(made))
    return any(
        isinstance(part, Collection)
        and not part.is_complete
        and any(isinstance(element, Instance) for element in part.elements)
        for part in inner
    )


class ShardingMatchesNothingWatcher(Watcher):
    """Look for models that FSDP shards as one unit, when they are called."""

    def __init__(self) -> None:
        self._found: list[tuple[Location, int, int]] = []  # with the step and the blocks

    def on_model(self, run: Script, model: nn.Module) -> None:
        if not _is_unit(model):
            return
        blocks = _count_blocks(model)
        if blocks > 1 and not any(_is_unit(part) for part in model.modules() if part is not model):
            self._found.append((run.locate(), run.step + 1, blocks))

    def observe(self, run: Script) -> Iterator[Problem]:
        for location, step, blocks in self._found:
            yield Problem(
                f"FSDP shards a model with {blocks} equal blocks as one unit.",
                {"blocks": blocks},
                location=location,
                since_step=step,
            )


def _is_unit(module: nn.Module) -> bool:
    names = {kind.__name__ for kind in type(module).__mro__}
    return bool(names & {"FullyShardedDataParallel", "FSDPModule"})


def _count_blocks(model: nn.Module) -> int:
    """Return the largest number of modules of one class that another module has as its parts."""
    longest = 0
    for module in model.modules():
        parts = [type(part) for part in module.children() if len(list(part.children()))]
        longest = max([longest, *(parts.count(kind) for kind in parts)])
    return longest
