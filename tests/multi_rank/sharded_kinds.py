"""Kinds of training that must be equal on shards and full parameters: FSDP and ZeRO."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import surestep
from surestep import batch_transforms, samplers
from surestep.base.errors import TaskError
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from tests.laws.support import spike_task
from tests.multi_rank import counting, deepspeed_engine, fsdp
from tests.multi_rank.cases import data, net, opened, task, trained
from tests.multi_rank.shard_options import Deep
from tests.multi_rank.training_kinds import (
    SPIKE,
    SPIKE_STEPS,
    Found,
    Rows,
    clock_of,
    streaming,
)
from tests.parts import add_part

Kind = Callable[..., Found]


def whole_weights(session: Session) -> dict[str, Tensor]:
    """Return the full weights by name."""
    if session.plan.parallel_strategy != "deepspeed":
        return fsdp.whole_weights(session)
    whole, first = deepspeed_engine.whole_weights(session), {}
    for name, each in session.model.named_parameters():
        first[id(each)] = name
    state = session.model.state_dict(keep_vars=True).items()
    return {name: whole[first[id(each)]] if id(each) in first else each for name, each in state}


def of(make: Callable[[], surestep.Task], **said: Any) -> Kind:
    """Return a function that trains a Task with options and takes more options."""

    def run(folder: Path, **more: Any) -> Found:
        return trained(folder, make(), weights=whole_weights, **{"max_steps": 8, **said, **more})

    return run


def two_sources() -> surestep.Task:
    x, y = data()
    order = samplers.mixture({"first": 0.3, "rest": 0.7})
    train = {"first": (x[:30], y[:30]), "rest": (x[30:], y[30:])}
    return surestep.Task(net, nn.CrossEntropyLoss(), train=train, val=(x, y), sampler=order)


def poisoned() -> surestep.Task:
    """Make a task with a NaN sample in the first epoch."""
    x, y = data()
    x[59] = float("nan")
    return task((x, y))


def deep() -> surestep.Task:
    return task(model=Deep)


def rolled_back(folder: Path, **more: Any) -> Found:
    """Train over a loss spike, with a rollback."""
    options = {
        **{"max_steps": SPIKE_STEPS, "batch_size": spike_task.BATCH, "on_spike": "rollback"},
        **{"optim": {"lr": spike_task.LR, "weight_decay": spike_task.DECAY}},
        **{"checkpoint": {"every": "20 steps"}, "logging": {"every": "25 steps"}},
    }
    with opened(folder, spike_task.task_of(SPIKE), **options, **more) as session:
        fit(session)
        found = done(session)
    return {**found, "back": session.state.spikes.rollbacks}


def by_the_clock(folder: Path, **more: Any) -> Found:
    """Save by time, with different clocks on the ranks."""
    rank = int(os.environ.get("RANK", "0"))
    every = {"checkpoint": {"every": "0.12 minutes", "keep_last": 50}}
    with clock_of(rank), opened(folder, task(), **every, **more) as session:
        fit(session)
        found = done(session)
    return {**found, "saved": len(list(folder.glob("checkpoints/step-*")))}


def stopped_early(folder: Path, **more: Any) -> Found:
    """Stop when an evaluation is not better than an earlier one."""
    options = {"early_stop": {"patience": 2}, "validation": {"every": "2 steps"}}
    said = {"max_steps": 60, "optim": {"lr": 0.2}, **options}
    with opened(folder, task(), **said, **more) as session:
        fit(session)
        return done(session)


class Freezes(surestep.Callback):
    """Freezes the first layer after step 3."""

    def on_step(self, state, result):
        if result.step == 3:
            state.model[0].requires_grad_(False)


def frozen_by_code(folder: Path, **more: Any) -> Found:
    """Freeze a layer, save two steps later, and resume without the code that froze it."""
    for ends_at, callbacks in ((5, [Freezes()]), (8, [])):
        with opened(folder, task(), max_steps=8, **more) as session:
            for callback in callbacks:
                add_part(session, callback)
            try:
                for result in session.steps():
                    if result.step == ends_at:
                        session.save()
                        break
            except TaskError as error:
                return {"error": str(error)}
            found = done(session)
    return found


def compiled(folder: Path, **more: Any) -> Found:
    """Compile the sharded blocks, with a backend that takes no time."""
    own, blocks, stats = torch.compile, [], counters["stats"]

    def quick(call: Callable[..., Any], **options: Any) -> Any:
        blocks.append(call)
        return own(call, backend="aot_eager")

    torch._dynamo.reset()
    before = stats["calls_captured"]
    said = {"compile": "default"} if more else {}
    torch.compile = quick
    try:
        found = of(deep, micro_batch_size=5)(folder, **said, **more)
    finally:
        torch.compile = own
    return {**found, "blocks": len(blocks), "operations": stats["calls_captured"] - before}


def done(session: Session) -> Found:
    return {"weights": whole_weights(session), "place": tuple(session.state.progress)}


MIXUP = batch_transforms.mixup(0.4, classes=3)
SHARDS: dict[str, Kind] = {
    "stream": of(lambda: streaming(Rows()), micro_batch_size=3),
    "two sources": of(two_sources, micro_batch_size=3),
    "mixup": of(lambda: task(batch_transform=MIXUP), micro_batch_size=3),
    "skipping": of(poisoned, on_nonfinite="skip"),
    "ema": of(task, average={"kind": "ema", "decay": 0.9}),
    "swa": of(task, average={"kind": "swa", "start": "5 steps"}),
    "recomputed": of(deep, activation_checkpointing="on", micro_batch_size=3),
    "rollback": rolled_back,
    "clock": by_the_clock,
    "early stop": stopped_early,
    "frozen": frozen_by_code,
    "compiled": compiled,
    "counters": partial(counting.counted, weights=whole_weights),
}
CUT: dict[str, dict[str, Any]] = {
    "full": {"strategy": "fsdp", "shard": "full"},
    "grad_op": {"strategy": "fsdp", "shard": "grad_op"},
    "hybrid": {"strategy": "fsdp", "shard": "hybrid", "shard_size": 2},
    "offload": {"strategy": "fsdp", "offload": "all"},
    **{f"zero-{stage}": deepspeed_engine.options(stage)["parallel"] for stage in (2, 3)},
    "zero offload": {**deepspeed_engine.options(3)["parallel"], "offload": "all"},
}
# The rollback takes 60 steps and is the same for each sharding.
LONG = ("rollback", "clock", "early stop")
NOT_BY_ZERO = ("compiled", "frozen")  # rejected with DeepSpeed
# One sharding of FSDP and one of ZeRO read the data; they do it in the same way in each sharding.
OF_DATA = ("stream", "two sources", "mixup")
FULL = ("skipping", "ema", "recomputed", "compiled")
OFFLOADED = ("recomputed", "skipping", "ema")


def shards(ranks: int) -> list[tuple[str, str]]:
    """List what runs on a number of ranks, as (sharding, kind)."""
    if ranks == 4:
        return [("hybrid", kind) for kind in SHARDS if kind not in (*LONG, *OF_DATA, "compiled")]
    return [
        *(("grad_op", kind) for kind in SHARDS),
        *(("full", kind) for kind in FULL),
        *(("offload", kind) for kind in OFFLOADED),
        *(("zero-2", kind) for kind in SHARDS if kind not in NOT_BY_ZERO),
        *(("zero-3", kind) for kind in ("skipping", "recomputed")),
        ("zero offload", "skipping"),
    ]
