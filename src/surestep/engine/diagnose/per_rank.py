"""Find on several ranks what made a step not finite: each looks at its share, for itself.

Where each rank has a whole copy of the model, no other is needed to take a part of its share
again. None may be: ranks look at different parts, and a different number of them. What they found
is put together afterwards.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from surestep.engine.batch import Batch
from surestep.engine.diagnose.bisect import (
    ALONE,
    BESIDE,
    EACH_ALONE,
    EACH_BESIDE,
    BisectResult,
    SampleRef,
)
from surestep.engine.diagnose.cause import NonFiniteCause, TensorSummary
from surestep.engine.diagnose.diagnose import Diagnosis, diagnose
from surestep.engine.dispatch import DispatchMode
from surestep.engine.parallel.single import SingleProcessStrategy
from surestep.engine.plan.plan import Plan
from surestep.engine.step.train_step import StepContext, compute_and_apply

COLLECTIVES = ("c10d", "_c10d_functional")


class ForbidCollectives(DispatchMode):
    """Lets nothing through that waits for other ranks, as SyncBatchNorm does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise RuntimeError(f"{func} waits for other ranks")
        return func(*args, **(kwargs or {}))


def can_diagnose_per_rank(parts: StepContext, plan: Plan) -> bool:
    """Say whether a rank can take parts of its share again without the others."""
    return parts.strategy.copies_model and parts.update is compute_and_apply


def diagnose_share(
    parts: StepContext, plan: Plan, batch: Batch, *, index: Tensor | range | None, divisor: float
) -> Diagnosis | None:
    """Diagnose the share of one rank, which waits for no other; None where it has no items.

    Args:
        parts: of this rank, whose state is the one before the step.
        plan: of this rank.
        batch: its share, on the device, as it was read.
        index: of the sample at each position of the epoch.
        divisor: of the loss of the whole batch.

    Raises:
        RuntimeError: the model or the loss talks to other ranks.
    """
    if not batch.items:
        return None
    alone = replace(parts, strategy=SingleProcessStrategy(plan, parts.state))
    with ForbidCollectives():
        return diagnose(alone, batch, index=index, divisor=divisor)


def to_json(found: Diagnosis | None, failed: str = "") -> str:
    """Return what a rank found, or why its search failed, for the others."""
    return json.dumps({"found": None if found is None else asdict(found), "failed": failed})


def merge_diagnoses(texts: Sequence[str]) -> Diagnosis | None:
    """Put together what the ranks found, in their order; None where none of them found anything.

    The cause is that of the first rank that saw one.
    """
    told = [json.loads(each) for each in texts]
    found = [_diagnosis(each["found"]) for each in told if each["found"] is not None]
    bad = [each for each in found if each.reproduced]
    if not bad:
        return None
    samples = sorted(
        (sample for each in bad for sample in each.samples.samples),
        key=lambda sample: sample.position,
    )
    named = [each.samples for each in bad if each.samples.samples] or [each.samples for each in bad]
    ways = dict.fromkeys(each.how for each in named)
    failed = [
        f"rank {rank} could not look ({each['failed']})"
        for rank, each in enumerate(told)
        if each["failed"]
    ]
    if len(samples) > 1:
        several = {ALONE: EACH_ALONE, BESIDE: EACH_BESIDE}
        ways = dict.fromkeys(several.get(way, way) for way in ways)
    return Diagnosis(
        sum(each.loss for each in found),
        tuple(dict.fromkeys(name for each in bad for name in each.bad)),
        next((each.cause for each in bad if each.cause is not None), None),
        BisectResult(
            tuple(samples),
            "; ".join([*ways, *failed]),
            known=not failed and all(each.samples.known for each in bad),
            of=bad[0].samples.of,
        ),
        _largest([each.weights for each in found]),
    )


def _largest(weights: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the largest of those of all ranks, of which each may have parts."""
    together: dict[str, float] = {}
    for name, value in (pair for each in weights for pair in each.items()):
        together[name] = max(value, together.get(name, value))
    ranked = sorted(together.items(), key=lambda each: -each[1])
    return dict(ranked[: max(map(len, weights))])


def _diagnosis(record: dict[str, Any]) -> Diagnosis:
    cause, samples = record["cause"], record["samples"]
    if cause is not None:
        inputs = tuple(map(_values, cause["inputs"]))
        output = None if cause["output"] is None else _values(cause["output"])
        cause = NonFiniteCause(
            **{**cause, "inputs": inputs, "output": output, "rows": tuple(cause["rows"])}
        )
    each = tuple(SampleRef(**one) for one in samples["samples"])
    found = BisectResult(**{**samples, "samples": each})
    return Diagnosis(record["loss"], tuple(record["bad"]), cause, found, record["weights"])


def _values(record: dict[str, Any]) -> TensorSummary:
    return TensorSummary(**{**record, "shape": tuple(record["shape"])})
