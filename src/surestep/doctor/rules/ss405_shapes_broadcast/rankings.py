"""Whether the values in each row of a table are compared with one another."""

from __future__ import annotations

from surestep.doctor.source.trace import Trace
from surestep.doctor.source.training import find_actions, is_made_by, tensor_of
from surestep.doctor.source.values import Call, Collection, Constant, Operation, Value, walk

_MOST_PARTS = 500  # of a loss, or of what is ranked
_RANKS = frozenset("softmax log_softmax softmin gumbel_softmax logsumexp cross_entropy".split())
_RANKS_A_ROW = frozenset(  # if they are given a dimension
    "min max amin amax argmin argmax median kthvalue quantile sort argsort topk".split()
)
_MODULES = ("Softmax", "LogSoftmax", "Softmin", "CrossEntropyLoss")
_RESHAPES = frozenset("flatten ravel view reshape".split())
_ENDS = frozenset("detach item tolist numpy backward".split())  # of what a gradient flows through


def is_ranked(table: Value, trace: Trace) -> bool:
    """Return whether the values of a row are ranked, such as the distances to centers.

    This is so if a loss contains a ranking of the table, or if no loss contains the table, and
    something else ranks it.
    """
    losses = [action.target for action in find_actions(trace) if action.kind == "backward"]
    contents = [
        list(walk(loss, _MOST_PARTS, stop_at=_is_end)) for loss in losses if loss is not None
    ]
    contents = [parts for parts in contents if table in parts]
    calls = [part for parts in contents for part in parts]
    if not contents:
        calls = [call for _, call in trace.calls]
    return any(isinstance(call, Call) and _ranks(call, table) for call in calls)


def _ranks(call: Call, table: Value) -> bool:
    """Return whether a call ranks the values in each row of a table."""
    if is_made_by(call.receiver, *(f"torch.nn.{name}" for name in _MODULES)):
        ranked = call.argument(0, "input")
    elif call.is_method or call.path.startswith("torch."):
        ranked = tensor_of(call)
        if call.name not in _RANKS and not (call.name in _RANKS_A_ROW and _has_dimension(call)):
            return False
    else:
        return False
    return ranked is not None and table in walk(ranked, _MOST_PARTS, stop_at=_is_end_or_reshape)


def _is_end(value: Value) -> bool:
    return isinstance(value, Call) and value.name in _ENDS


def _is_end_or_reshape(value: Value) -> bool:
    return isinstance(value, Call) and value.name in _ENDS | _RESHAPES


def _has_dimension(call: Call) -> bool:
    """Return whether a call is given a dimension, which is a number, and not a second tensor."""
    named = call.keywords.get("dim") or call.keywords.get("axis")
    first = 0 if call.is_method else 1
    position = first + (call.name in ("kthvalue", "quantile", "topk"))
    given = call.argument(position, "dim") if named is None else named
    match given:
        case None:
            return call.name in ("sort", "argsort", "topk", "kthvalue")
        case Operation(operator="-", operands=(_,)) | Constant() | Collection():
            return True
    return False
