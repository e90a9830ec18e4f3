"""Whether the values in each row of a table are compared with one another."""

from __future__ import annotations

from surestep.doctor.source.trace import Trace
from surestep.doctor.source.training import tensor_of
from surestep.doctor.source.values import Call, Value, walk

_MOST_PARTS = 50  # of what is ranked
_RANKS = frozenset(
    "softmax log_softmax softmin gumbel_softmax logsumexp cross_entropy sort argsort topk".split()
)
_RANKS_A_ROW = frozenset("min max amin amax argmin argmax median kthvalue".split())  # with `dim`


def is_ranked(table: Value, trace: Trace) -> bool:
    """Return whether the values of a row are ranked, such as the distances to centers."""
    for event in trace.events:
        ranked = tensor_of(event.call) if event.call and _ranks(event.call) else None
        if ranked is not None and any(part is table for part in walk(ranked, _MOST_PARTS)):
            return True
    return False


def _ranks(call: Call) -> bool:
    has_dim = call.argument(0 if call.is_method else 1, "dim") is not None
    return call.name in _RANKS or (call.name in _RANKS_A_ROW and has_dim)
