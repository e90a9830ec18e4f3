"""The average of the weights."""

from typing import Any

from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table.rows import Refusals, Rows, default, is_said, plain, said


def _is(kind: str) -> Any:
    return lambda k: k["average.kind"] == kind


def _refuse_for_others(option: str, kind: str) -> Refusal:
    return Refusal(
        lambda k: option in k.said and k["average.kind"] != kind,
        lambda k: (
            f"{option}={k.said[option]!r} is an option of average.kind={kind!r}, and average.kind "
            f"is {k['average.kind']}. Leave it out, or say average.kind={kind!r}."
        ),
    )


def _refuse_without_average(option: str) -> Refusal:
    return Refusal(
        lambda k: option in k.said and k["average.kind"] == "none",
        lambda k: f"{option}={k.said[option]!r} needs an average: say average.kind='ema' or 'swa'.",
    )


def _epochs_left(k: Known) -> float:
    left = k["total_steps"] - k.length(k["average.start"])
    return float(left / k["steps_per_epoch"])


def _never_averaged(k: Known) -> bool:
    first = int(k.length(k["average.start"])) + max(1, round(k.steps(k["average.every"])))
    return bool(k["average.kind"] != "none" and first > k["total_steps"])


NO_AVERAGE = "there is no average"

ROWS: Rows = {
    "average.kind": plain("average.kind", "none", "nothing said: the last weights are the model"),
    "average.decay": (
        said("average.decay"),
        Row(_is("ema"), lambda _: 0.999, "a memory of about 1,000 updates"),
        default(None, "only EMA has one"),
    ),
    "average.warmup": (
        said("average.warmup"),
        Row(_is("ema"), lambda _: True, "a young average is not mostly the first weights"),
        default(None, "only EMA has one"),
    ),
    "average.start": (
        said("average.start"),
        Row(_is("swa"), lambda _: "75%", "as in the paper (arxiv.org/abs/1803.05407)"),
        Row(_is("ema"), lambda _: "0%", "from the first step on"),
        default("0%", NO_AVERAGE),
    ),
    "average.every": (
        said("average.every"),
        Row(
            lambda k: k["average.kind"] == "swa" and k["steps_per_epoch"] is None,
            lambda _: "1 step",
            "how many steps an epoch has is not known",
        ),
        Row(
            lambda k: k["average.kind"] == "swa" and _epochs_left(k) < 1,
            lambda _: "1 step",
            "less than an epoch is averaged",
        ),
        Row(_is("swa"), lambda _: "1 epoch", "as in the paper"),
        default("1 step", "with each step"),
    ),
    "average.buffers": (
        said("average.buffers"),
        Row(
            lambda k: k["average.kind"] == "swa" and k.given.batch_norm and k.given.called,
            lambda _: "recompute",
            "BatchNorm has never seen the averaged weights: one pass over the training data",
        ),
        Row(
            lambda k: k["average.kind"] == "swa" and k.given.batch_norm,
            lambda _: "average",
            "nobody calls the model as a whole, which computing BatchNorm's statistics anew takes",
        ),
        Row(_is("ema"), lambda _: "average", "running statistics follow the weights"),
        default("copy", "the model's own"),
    ),
    "average.lr": plain("average.lr", None, "nothing said: the schedule's own rate"),
    "average.anneal": (
        said("average.anneal"),
        Row(is_said("average.lr"), lambda _: "5%", "so that the rate does not jump"),
        default("0%", "there is no average.lr to go over to"),
    ),
}

REFUSALS: Refusals = {
    "average.decay": (
        _refuse_without_average("average.decay"),
        _refuse_for_others("average.decay", "ema"),
    ),
    "average.warmup": (
        _refuse_without_average("average.warmup"),
        _refuse_for_others("average.warmup", "ema"),
    ),
    "average.start": (_refuse_without_average("average.start"),),
    "average.every": (_refuse_without_average("average.every"),),
    "average.buffers": (
        _refuse_without_average("average.buffers"),
        Refusal(
            _never_averaged,
            lambda k: (
                f"average.start={k['average.start']!r} and average.every={k['average.every']!r} "
                f"leave the average empty in a run of {k['total_steps']} steps. Use an earlier "
                "start, a smaller every, or a longer run."
            ),
        ),
        Refusal(
            lambda k: k.said.get("average.buffers") == "recompute" and not k.given.batch_norm,
            lambda k: (
                "average.buffers='recompute' computes BatchNorm's statistics anew, and the model "
                "has no BatchNorm. Leave it out."
            ),
        ),
        Refusal(
            lambda k: k.said.get("average.buffers") == "recompute" and not k.given.called,
            lambda _: (
                "average.buffers='recompute' calls the model with each batch, and the Task's own "
                "step calls its parts. Say 'average', or Task(loss=...) where the model has a "
                "forward."
            ),
        ),
    ),
    "average.lr": (
        _refuse_without_average("average.lr"),
        _refuse_for_others("average.lr", "swa"),
        Refusal(
            lambda k: "average.lr" in k.said and k["schedule.name"] == "reduce_on_plateau",
            lambda k: (
                f"average.lr={k.said['average.lr']} goes over from a rate known beforehand, and "
                "that of reduce_on_plateau is not. Leave it out, or say schedule.name='cosine'."
            ),
        ),
    ),
    "average.anneal": (
        Refusal(
            lambda k: "average.anneal" in k.said and "average.lr" not in k.said,
            lambda k: (
                f"average.anneal={k.said['average.anneal']!r} is the way to average.lr, which is "
                "not said. Say average.lr too."
            ),
        ),
    ),
}
