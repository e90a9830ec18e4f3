"""What DeepSpeed's engine says of itself, and what each rank has under it."""

import io
import math
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from surestep.engine.parallel.world import WORDS
from surestep.trainer.session import Session
from tests.multi_rank.cases import data, opened, task, trained
from tests.multi_rank.traffic import traffic_of_a_step

WHOLE = sum(each.numel() for each in task().build_model().parameters())


# Else parameters as small as these stay whole on each rank under stage 3.
ALL_CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}

BF16 = {"precision": "bf16", "micro_batch_size": 3}


def options(stage: int) -> dict[str, Any]:
    own = {"deepspeed": ALL_CUT} if stage == 3 else {}
    return {"parallel": {"kind": "deepspeed", "zero": stage, **own}}


def whole_weights(session: Session) -> dict[str, Tensor]:
    """Gather each parameter by DeepSpeed's own accessor; under stage 0 it is whole."""
    from deepspeed.utils import safe_get_full_fp32_param

    found = {}
    for name, parameter in session.model.named_parameters():
        gathered = safe_get_full_fp32_param(parameter)
        found[name] = (parameter.detach() if gathered is None else gathered).clone()
    return found


def shown_by_engine(session: Session) -> dict[str, Any]:
    """Say which stage the engine is in, and how much of optimizer and parameters is here."""
    engine, loop = session.loop.parts.parallel.engine, session.loop
    slots = [max(map(_numel, each.values())) for each in session.optimizer.state.values()]
    pieces = [getattr(each, "ds_tensor", each) for each in session.model.parameters()]
    return {
        "stage": engine.zero_optimization_stage(),
        "optimizer": sum(slots),
        "held": sum(each.numel() for each in pieces),
        "micro": len(next(loop.feed.batches(0)).micro_batches),
        "traffic": traffic_of_a_step(session),
    }


def _numel(value: Any) -> int:
    return value.numel() if isinstance(value, Tensor) else 0


def is_stage(stage: int) -> Callable[[Mapping[str, Any], int], None]:
    """Return a proof that ZeRO is in a stage: what a rank holds, and what travels in a step.

    Stage 1 adds gradients up once a step, stages 2 and 3 with each micro-batch; those above 0
    gather weights. Beside that travel norms and the loss, and what the host agrees on.
    """

    def proves(shown: Mapping[str, Any], ranks: int) -> None:
        part = sum(math.ceil(each.numel() / ranks) for each in task().build_model().parameters())
        assert shown["stage"] == stage
        assert shown["optimizer"] == WHOLE if stage == 0 else 0 < shown["optimizer"] <= part
        assert shown["held"] == part if stage == 3 else shown["held"] == WHOLE
        sums = [n for n in shown["traffic"]["all_reduce"] if n not in (1, 2 + len(WORDS))]
        assert len(sums) == (shown["micro"] if stage >= 2 else 1)
        assert all(WHOLE <= each <= part * ranks for each in sums)
        assert ("all_gather" in shown["traffic"]) == (stage > 0)

    return proves


def gone_on(folder: Path, stage: int, **said: Any) -> dict[str, Any]:
    """Train at once; and stop after 7 steps with a checkpoint, and go on from it."""
    found, said = {}, {**options(stage), **said}
    for name in ("at once", "gone on"):
        if name == "gone on":
            with opened(folder / name, task(), **said) as session:
                for each in session.steps():
                    if each.step == 7:
                        session.save()
                        break
        told = trained(folder / name, task(), weights=whole_weights, **said)
        found[name] = {"weights": told["weights"], "losses": told["losses"]}
    return found


def skipped(folder: Path, stage: int, **said: Any) -> dict[str, Any]:
    """A sample of the last rank's share is NaN in step 3: all ranks skip it, and go on."""
    x, y = data()
    x[59] = float("nan")
    more = {"data": {"shuffle": False}, "on_nonfinite": "skip", "max_steps": 4, **options(stage)}
    with opened(folder, task((x, y)), **more, **said) as session:
        took, weights = [], []
        for each in session.steps():
            took.append(bool(each.took_step))
            weights.append(whole_weights(session))
        return {"took": took, "weights": weights}


def timed(folder: Path) -> str:
    """Ask DeepSpeed for its times; return what it prints."""
    own = {"kind": "deepspeed", "deepspeed": {"wall_clock_breakdown": True}}
    printed = io.StringIO()
    with redirect_stdout(printed):
        trained(folder, task(), max_steps=2, parallel=own)
    return printed.getvalue()


def buffers(folder: Path, kind: str) -> dict[str, Tensor]:
    """Train with BatchNorm; return its statistics as the last step left them on this rank."""
    made = task(model=lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)))
    with opened(folder, made, max_steps=4, parallel={"kind": kind}) as session:
        for _ in session.steps():
            pass
        return {name: each.clone() for name, each in session.model.named_buffers()}
