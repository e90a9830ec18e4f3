"""What DeepSpeed's engine reports, and what each rank holds under it."""

import io
import math
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.distributed.communicator import WORDS
from surestep.record.run import Run
from surestep.trainer.session import Session
from tests.multi_rank.cases import data, net, opened, task, trained
from tests.multi_rank.traffic import traffic_of_a_step

WHOLE = sum(each.numel() for each in task().build_model().parameters())


STEPS = 9  # of `gone_on`: three in the second epoch
# Otherwise stage 3 does not shard such small parameters.
ALL_CUT = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}

# Performance keys, which change no number, for each stage.
_ALL = {"reduce_bucket_size": 50, "overlap_comm": True, "contiguous_gradients": False}
_FLAT = {
    **_ALL,
    **{"reduce_scatter": False, "allgather_partitions": False, "allgather_bucket_size": 16},
    **{"use_multi_rank_bucket_allreduce": False, "parameter_alignment": True},
}
NEUTRAL: dict[int, dict[str, Any]] = {
    0: {"gradient_predivide_factor": 4.0, "prescale_gradients": True},
    1: {"zero_optimization": _FLAT},
    2: {"zero_optimization": {**_FLAT, "ignore_unused_parameters": False}},
    3: {
        "zero_optimization": {
            **_ALL,
            **{"sub_group_size": 40, "enable_sanity_checks": True},
            **{"stage3_param_persistence_threshold": 10, "stage3_prefetch_bucket_size": 20},
            **{"stage3_max_live_parameters": 10, "stage3_max_reuse_distance": 1},
            **{"stage3_use_all_reduce_for_fetch_params": True, "memory_efficient_linear": False},
            **{"zero_hpz_partition_size": 2},
        }
    },
}

BF16 = {"precision": "bf16", "micro_batch_size": 3}


def options(stage: int) -> dict[str, Any]:
    own = {"deepspeed": ALL_CUT} if stage == 3 else {}
    return {"parallel": {"strategy": "deepspeed", "zero_stage": stage, **own}}


def live_weights(session: Session) -> dict[str, Tensor]:
    """Return each parameter as the model uses it, gathered if it is sharded."""
    from deepspeed import zero

    found = {}
    for name, parameter in session.model.named_parameters():
        with zero.GatheredParameters([parameter]):
            found[name] = parameter.detach().clone()
    return found


def whole_weights(session: Session) -> dict[str, Tensor]:
    """Return the weights in fp32: the live ones if they are full, otherwise DeepSpeed's."""
    from deepspeed.utils import safe_get_full_fp32_param

    found = {}
    for name, parameter in session.model.named_parameters():
        is_live = parameter.dtype == torch.float32 and not hasattr(parameter, "ds_tensor")
        whole = parameter.detach() if is_live else safe_get_full_fp32_param(parameter)
        found[name] = whole.clone()
    return found


def saved_weights(folder: Path) -> dict[str, Tensor]:
    model = net()
    Run(folder).load_model(model, which="last")
    return dict(model.state_dict())


def shown_by_engine(session: Session) -> dict[str, Any]:
    """Return the stage of the engine, and the sizes of optimizer state and parameters here."""
    engine, loop = session.loop.context.strategy.engine, session.loop
    slots = [max(map(_numel, each.values())) for each in session.optimizer.state.values()]
    pieces = [getattr(each, "ds_tensor", each) for each in session.model.parameters()]
    return {
        "stage": engine.zero_optimization_stage(),
        "optimizer": sum(slots),
        "held": sum(each.numel() for each in pieces),
        "micro": len(next(loop.loader.batches(0)).micro_batches),
        "traffic": traffic_of_a_step(session),
    }


def _numel(value: Any) -> int:
    return value.numel() if isinstance(value, Tensor) else 0


def is_stage(stage: int) -> Callable[[Mapping[str, Any], int], None]:
    """Return a check of a stage of ZeRO: what a rank holds, and the traffic of a step.

    Stage 1 reduces gradients once a step, stages 2 and 3 with each micro-batch; stages above 0
    gather weights. Norms, the loss and values of the host are sent too.
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
    """Train at once; and stop after 7 steps with a checkpoint, evaluate it, and resume."""
    parallel = {"strategy": "deepspeed", "zero_stage": stage, "deepspeed": NEUTRAL[stage]}
    found: dict[str, Any] = {}
    said = {"parallel": parallel, "max_steps": STEPS, **said}
    for name in ("at once", "gone on"):
        if name == "gone on":
            with opened(folder / name, task(), **said) as session:
                for each in session.steps():
                    if each.step == 7:
                        session.save()
                        found["live"] = live_weights(session)
                        session.evaluate()
                        session.evaluate_checkpoint("val", "last")
                        break
            found["saved"] = saved_weights(folder / name)
        told = trained(folder / name, task(), weights=whole_weights, **said)
        found[name] = {"weights": told["weights"], "losses": told["losses"]}
    return found


def skipped(folder: Path, stage: int, **said: Any) -> dict[str, Any]:
    """Train with a NaN sample of the last rank in step 3, which all ranks skip."""
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
    """Request DeepSpeed's times; return its output."""
    own = {"strategy": "deepspeed", "deepspeed": {"wall_clock_breakdown": True}}
    printed = io.StringIO()
    with redirect_stdout(printed):
        trained(folder, task(), max_steps=2, parallel=own)
    return printed.getvalue()


def buffers(folder: Path, kind: str) -> dict[str, Tensor]:
    """Train with BatchNorm; return its statistics after the last step on this rank."""
    made = task(model=lambda: nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)))
    with opened(folder, made, max_steps=4, parallel={"strategy": kind}) as session:
        for _ in session.steps():
            pass
        return {name: each.clone() for name, each in session.model.named_buffers()}
