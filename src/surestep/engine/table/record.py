"""What a run keeps and shows."""

from surestep.base.duration import parse_duration
from surestep.engine.plan import Refusal, Row
from surestep.engine.table.rows import (
    Refusals,
    Rows,
    default,
    how_often,
    plain,
    refuse_part_of_epoch,
    said,
)

ROWS: Rows = {
    "profile": plain("profile", None, "nothing said: no step is profiled"),
    "checkpoint.every": how_often(
        "checkpoint.every",
        off="saved at the end, and if the run is stopped",
        usual="1 epoch",
        reason="no more than an epoch is lost",
    ),
    "checkpoint.keep_last": plain("checkpoint.keep_last", 2, "the newest, and one behind it"),
    "checkpoint.keep_best": plain("checkpoint.keep_best", 1, "the best by validation.metric"),
    "checkpoint.keep_every": (
        said("checkpoint.keep_every", parse_duration),
        default(None, "nothing said: no milestones are kept"),
    ),
    "checkpoint.async_save": (
        said("checkpoint.async_save"),
        Row(
            lambda k: k.facts.cpus < 2,
            lambda _: False,
            "one CPU: a thread that writes would take it from the steps",
        ),
        default(True, "a step waits only while the state is copied; a thread writes the copy"),
    ),
    "checkpoint.weights": (
        said("checkpoint.weights"),
        Row(
            lambda k: k.given.adapters,
            lambda _: "trained",
            "adapters on a frozen base, which is built or read anew and proven the same",
        ),
        default("all", "a checkpoint is whole by itself"),
    ),
    "logging.every": how_often(
        "logging.every",
        off="read at evaluations, checkpoints and the end of each epoch",
        usual="50 steps",
        reason="each read waits for the device; 50 steps hide it",
    ),
    "logging.progress": (
        Row(
            lambda k: k.said.get("logging.progress", "auto") != "auto",
            lambda k: k.said["logging.progress"],
            "said: {origin}",
        ),
        Row(lambda k: k.facts.display != "none", lambda _: "bar", "a {k.facts.display} is here"),
        default("plain", "no terminal here"),
    ),
    "logging.ranks": plain(
        "logging.ranks", "first", "the first process prints, the others say the same"
    ),
}

REFUSALS: Refusals = {
    "profile": (
        Refusal(
            lambda k: int((k.said.get("profile") or "0:0").split(":")[1]) > k["total_steps"],
            lambda k: (
                f"profile={k.said['profile']!r} goes beyond the run of {k['total_steps']} steps. "
                "Use earlier steps, or a longer run."
            ),
        ),
    ),
    "checkpoint.keep_every": (
        Refusal(
            lambda k: (
                "epoch" in (k.said.get("checkpoint.keep_every") or "")
                and k["steps_per_epoch"] is None
            ),
            lambda k: (
                f"checkpoint.keep_every={k.said['checkpoint.keep_every']!r} has no length in "
                "steps: the training data is a stream that does not say how many samples it has. "
                "Say it in steps, such as '1000 steps'."
            ),
        ),
    ),
    "checkpoint.every": (refuse_part_of_epoch("checkpoint.every"),),
    "logging.every": (refuse_part_of_epoch("logging.every"),),
}
