"""Which expressions of a script refer to a wrapped model, and which to the model inside.

The follower takes a wrapped model of the project for the model itself. Here they differ by
the names that they were assigned to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.values import Call, Value

# Methods that return their module, or their tensor on another device or of another type.
MOVES = frozenset("to cuda cpu half float double bfloat16 train eval requires_grad_".split())
# Methods of an Accelerator, a Fabric or the like that return what they are given, wrapped.
PREPARES = frozenset(
    "prepare setup setup_dataloaders setup_module prepare_model prepare_optimizer "
    "prepare_data_loader unwrap_model".split()
)
# Functions and methods that return what they are given, wrapped.
WRAPPERS = PREPARES | frozenset(
    "DistributedDataParallel DataParallel FullyShardedDataParallel fully_shard DDP FSDP compile "
    "script convert_sync_batchnorm".split()
)
PREFIXES = {
    "torch.nn.parallel.DistributedDataParallel": "module.",
    "torch.nn.parallel.distributed.DistributedDataParallel": "module.",
    "torch.nn.parallel.DataParallel": "module.",
    "torch.nn.DataParallel": "module.",
    "torch.compile": "_orig_mod.",
}
REDUCES = tuple(path for path in PREFIXES if path.endswith("DistributedDataParallel"))


def find_wrappers(trace: Trace, paths: tuple[str, ...]) -> Iterator[tuple[Event, Call]]:
    """Yield the calls that wrap a model."""
    for event, call in trace.calls:
        if call.path in paths:
            yield event, call


def find_wrapper(
    trace: Trace, before: Event, expression: ast.expr, paths: tuple[str, ...]
) -> Call | None:
    """Return the call that wrapped the model to which an expression refers.

    Args:
        trace: with the event.
        before: the event that uses the expression.
        expression: such as the name `model`.
        paths: of the wrappers.
    """
    last = last_store(trace, before, expression)
    if last is None:
        return None
    statement = getattr(last.node, "value", None)
    calls = (call for _, call in find_wrappers(trace, paths))
    return next((call for call in calls if call.node is statement), None)


def last_store(trace: Trace, before: Event, expression: ast.expr) -> Event | None:
    """Return the last assignment to an expression before an event, in the same function."""
    end, last = trace.index(before), None
    for event in _find_stores(trace).get(ast.unparse(expression), ()):
        if trace.index(event) >= end:
            return last
        if not isinstance(expression, ast.Name) or event.stack == before.stack:
            last = event
    return last


@once_per_trace
def _find_stores(trace: Trace) -> dict[str, list[Event]]:
    """Return the assignments, by the expression that is assigned to."""
    stores: dict[str, list[Event]] = {}
    for event in trace.events:
        if event.kind == "store" and event.target is not None:
            stores.setdefault(ast.unparse(event.target), []).append(event)
    return stores


def event_of(trace: Trace, value: Value) -> Event | None:
    """Return the event that is the call of a value."""
    return _find_events(trace).get(value)


@once_per_trace
def _find_events(trace: Trace) -> dict[Value, Event]:
    """Return the first event with each value."""
    return {event.value: event for event in reversed(trace.events)}
