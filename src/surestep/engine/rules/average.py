"""The average of the weights."""

from typing import Any

from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules.helpers import (
    Refusals,
    Rows,
    default_value,
    is_set,
    user_value,
    user_value_or,
)


def _is(kind: str) -> Any:
    return lambda k: k["average.kind"] == kind


def _epochs_left(k: PlanContext) -> float:
    left = k["total_steps"] - k.length_in_steps(k["average.start"])
    return float(left / k["steps_per_epoch"])


def _never_averaged(k: PlanContext) -> bool:
    first = int(k.length_in_steps(k["average.start"])) + max(1, round(k.steps(k["average.every"])))
    return bool(k["average.kind"] != "none" and first > k["total_steps"])


NO_AVERAGE = "there is no average"

ROWS: Rows = {
    "average.kind": user_value_or(
        "average.kind", "none", "not set: the last weights are the model"
    ),
    "average.decay": (
        user_value("average.decay"),
        Rule(_is("ema"), lambda _: 0.999, "a memory of about 1,000 updates"),
        default_value(None, "only EMA has one"),
    ),
    "average.warmup": (
        user_value("average.warmup"),
        Rule(_is("ema"), lambda _: True, "a young average is not mostly the first weights"),
        default_value(None, "only EMA has one"),
    ),
    "average.start": (
        user_value("average.start"),
        Rule(_is("swa"), lambda _: "75%", "as in the paper (arxiv.org/abs/1803.05407)"),
        Rule(_is("ema"), lambda _: "0%", "from the first step on"),
        default_value("0%", NO_AVERAGE),
    ),
    "average.every": (
        user_value("average.every"),
        Rule(
            lambda k: k["average.kind"] == "swa" and k["steps_per_epoch"] is None,
            lambda _: "1 step",
            "how many steps an epoch has is not known",
        ),
        Rule(
            lambda k: k["average.kind"] == "swa" and _epochs_left(k) < 1,
            lambda _: "1 step",
            "less than an epoch is averaged",
        ),
        Rule(_is("swa"), lambda _: "1 epoch", "as in the paper"),
        default_value("1 step", "with each step"),
    ),
    "average.buffers": (
        user_value("average.buffers"),
        Rule(
            lambda k: k["average.kind"] == "swa" and k.task_info.batch_norm and k.task_info.called,
            lambda _: "recompute",
            "BatchNorm has never seen the averaged weights: one pass over the training data",
        ),
        Rule(
            lambda k: k["average.kind"] == "swa" and k.task_info.batch_norm,
            lambda _: "average",
            "nobody calls the model as a whole, which computing BatchNorm's statistics anew takes",
        ),
        Rule(_is("ema"), lambda _: "average", "running statistics follow the weights"),
        default_value("copy", "the model's own"),
    ),
    "average.lr": user_value_or("average.lr", None, "not set: the schedule's own rate"),
    "average.anneal": (
        user_value("average.anneal"),
        Rule(is_set("average.lr"), lambda _: "5%", "so that the rate does not jump"),
        default_value("0%", "there is no average.lr to go over to"),
    ),
}

REFUSALS: Refusals = {
    "average.buffers": (
        Constraint(
            _never_averaged,
            lambda k: (
                f"average.start={k['average.start']!r} and average.every={k['average.every']!r} "
                f"leave the average empty in a run of {k['total_steps']} steps. Use an earlier "
                "start, a smaller every, or a longer run."
            ),
        ),
        Constraint(
            lambda k: (
                k.set_options.get("average.buffers") == "recompute" and not k.task_info.batch_norm
            ),
            lambda k: (
                "average.buffers='recompute' computes BatchNorm's statistics anew, and the model "
                "has no BatchNorm. Leave it out."
            ),
        ),
        Constraint(
            lambda k: (
                k.set_options.get("average.buffers") == "recompute" and not k.task_info.called
            ),
            lambda _: (
                "average.buffers='recompute' calls the model with each batch, and the Task's own "
                "step calls its parts. Say 'average', or Task(loss=...) where the model has a "
                "forward."
            ),
        ),
    ),
    "average.lr": (
        Constraint(
            lambda k: "average.lr" in k.set_options and k["schedule.name"] == "reduce_on_plateau",
            lambda k: (
                f"average.lr={k.set_options['average.lr']} goes over from a rate known "
                "beforehand, and "
                "that of reduce_on_plateau is not. Leave it out, or say schedule.name='cosine'."
            ),
        ),
    ),
}
