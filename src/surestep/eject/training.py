"""The training loop of an ejected script: its options, evaluations and checkpoints."""

from collections.abc import Set
from typing import Any

import torch
from torch import nn

from surestep.base.errors import RecipeError
from surestep.config.duration import Duration
from surestep.eject.choices import Choices, flags_of
from surestep.engine.plan.batching import find_largest_share
from surestep.engine.plan.plan import Plan


def choose_training(plan: Plan, model: nn.Module, *, builds: bool, has_val: bool) -> Choices:
    """Return what a Plan chooses of `templates/program.py`.

    Args:
        plan: the Plan of the run.
        model: its model.
        builds: the Task has a function that builds the model.
        has_val: there is validation data.
    """
    flags = flags_of(
        builds=builds,
        val=has_val,
        delta=plan.early_stop_min_delta > 0,
        lower=plan.validation_mode == "min",
        many=has_micro_batches(plan),
        one=plan.parallel_ranks == 1,
        ranks=plan.parallel_ranks > 1,
        shares=plan.parallel_ranks > 1 and next(model.buffers(), None) is not None,
        shuffle=plan.data_shuffle,
        deterministic=plan.deterministic,
        clip_norm=plan.max_grad_norm is not None,
        strict=plan.max_grad_norm is not None and plan.precision != "fp16",
        clip_value=plan.clip_value is not None,
        scales=plan.precision == "fp16",
        half=plan.precision in ("bf16", "fp16"),
        buffers=next(model.buffers(), None) is not None,
        threads=plan.num_threads is not None,
        logs=plan.logging_every is not None,
        early_stop=plan.early_stop_patience is not None,
        late_patience=plan.early_stop_start is not None,
    )
    constants: dict[str, Any] = {
        "SEED": plan.seed,
        "STEPS": plan.total_steps,
        "STEPS_PER_EPOCH": plan.steps_per_epoch,
        "BATCH_SIZE": plan.batch_size,
        "RANKS": plan.parallel_ranks,
        "MICRO_BATCH_SIZE": plan.micro_batch_size,
        "MAX_GRAD_NORM": plan.max_grad_norm,
        "CLIP_VALUE": plan.clip_value,
        "DTYPE": torch.bfloat16 if plan.precision == "bf16" else torch.float16,
        "INIT_SCALE": plan.scaler_init_scale,
        "GROWTH_FACTOR": plan.scaler_growth_factor,
        "GROWTH_INTERVAL": plan.scaler_growth_interval,
        "BACKOFF_FACTOR": plan.scaler_backoff_factor,
        "EVALUATE_EVERY": _steps_of(plan, "validation.every"),
        "EVALUATION_BATCH_SIZE": plan.validation_batch_size,
        "METRIC": str(plan.validation_metric).removeprefix("val/"),
        "MIN_DELTA": plan.early_stop_min_delta,
        "PATIENCE": plan.early_stop_patience,
        "PATIENCE_START": _length(plan, plan.early_stop_start),
        "THREADS": plan.num_threads,
        "WORKERS": plan.data_num_workers,
        "LOG_EVERY": _steps_of(plan, "logging.every"),
        "SAVE_EVERY": _steps_of(plan, "checkpoint.every"),
    }
    return Choices(flags, constants, _rename(flags)) | _choose_average(plan) | _choose_plateau(plan)


def _rename(flags: Set[str]) -> dict[str, str]:
    """Return what to write for calls that these flags change."""
    renamed = {} if "scales" in flags else {", scaler)": ")"}
    if "logs" not in flags:
        renamed["loss = take_step("] = "take_step("
    if "ranks" in flags:
        renamed |= {
            '            print(f"step {step}:", *(f"{name} {value:.4g}" for name,': (
                "            if dist.get_rank() == 0:\n"
                '                print(f"step {step}:", *(f"{key} {value:.4g}" for key,'
            ),
            "(loss * (1 / items))": "(RANKS * loss * (1 / items))",
            "(loss / items)": "(RANKS * loss / items)",
            "torch.load(LAST, ": 'torch.load(LAST, map_location="cpu", ',
        }
    return renamed


def has_micro_batches(plan: Plan) -> bool:
    """Return whether the batch of a process is split."""
    share = find_largest_share(plan.batch_size, plan.parallel_ranks)
    return bool(plan.micro_batch_size < share)


def _choose_average(plan: Plan) -> Choices:
    spec = plan.average
    flags = flags_of(
        average=spec.kind != "none",
        ema=spec.kind == "ema",
        ema_warmup=spec.kind == "ema" and spec.warmup,
        mean_buffers=spec.buffers == "average",
        recompute=spec.buffers == "recompute",
    )
    call = "update_average(average, model, step"
    renamed = {} if "recompute" in flags else {f"{call}, parts)": f"{call})"}
    return Choices(
        flags,
        {
            "DECAY": spec.decay,
            "AVERAGE_START": spec.start,
            "AVERAGE_EVERY": int(spec.interval),
        },
        renamed,
    )


def _choose_plateau(plan: Plan) -> Choices:
    shape = plan.schedule
    if shape.name != "reduce_on_plateau":
        return Choices()
    own = shape.curve_options
    constants = {
        "FACTOR": own["factor"],
        "PLATEAU_PATIENCE": own["patience"],
        "THRESHOLD": own["threshold"],
        "COOLDOWN": own["cooldown"],
        "MIN_FACTOR": shape.min_lr_ratio,
    }
    return Choices(flags_of(absolute=own["threshold_mode"] == "abs"), constants)


def _steps_of(plan: Plan, option: str) -> int:
    """Return the steps of an interval; those of the run if there is none.

    Raises:
        RecipeError: they are not whole.
    """
    duration: Duration | None = getattr(plan, option.replace(".", "_"))
    if duration is None:
        return int(plan.total_steps)
    steps = duration.steps(plan.steps_per_epoch)
    if steps != int(steps):
        raise RecipeError(
            f"{option}='{duration}' is {steps:g} steps, and eject prints whole numbers of them. "
            f"Set {option}='{max(1, round(steps))} steps'."
        )
    return int(steps)


def _length(plan: Plan, duration: Duration | None) -> float:
    return 0 if duration is None else duration.steps(plan.steps_per_epoch)
