"""What a run keeps and shows."""

from surestep.config.duration import parse_duration
from surestep.engine.plan.plan import Constraint, Rule
from surestep.engine.rules.helpers import (
    Refusals,
    Rows,
    default_value,
    how_often,
    require_whole_epochs,
    user_value,
    user_value_or,
)

ROWS: Rows = {
    "profile": user_value_or("profile", None, "not set: no step is profiled"),
    "checkpoint.every": how_often(
        "checkpoint.every",
        off="saved at the end, and if the run is stopped",
        usual="1 epoch",
        reason="no more than an epoch is lost",
    ),
    "checkpoint.keep_last": user_value_or(
        "checkpoint.keep_last", 2, "the newest, and one behind it"
    ),
    "checkpoint.keep_best": user_value_or(
        "checkpoint.keep_best", 1, "the best by validation.metric"
    ),
    "checkpoint.keep_every": (
        user_value("checkpoint.keep_every", parse_duration),
        default_value(None, "not set: no milestones are kept"),
    ),
    "checkpoint.async_save": (
        user_value("checkpoint.async_save"),
        Rule(
            lambda k: k.system.cpus < 2,
            lambda _: False,
            "one CPU: a thread that writes would take it from the steps",
        ),
        default_value(
            True, "a step waits only while the state is copied; a thread writes the copy"
        ),
    ),
    "checkpoint.weights": (
        user_value("checkpoint.weights"),
        Rule(
            lambda k: k.task_info.adapters,
            lambda _: "trained",
            "adapters on a frozen base, which is built or read anew and proven the same",
        ),
        default_value("all", "a checkpoint is whole by itself"),
    ),
    "logging.every": how_often(
        "logging.every",
        off="read at evaluations, checkpoints and the end of each epoch",
        usual="50 steps",
        reason="each read waits for the device; 50 steps hide it",
    ),
    "logging.progress": (
        Rule(
            lambda k: k.set_options.get("logging.progress", "auto") != "auto",
            lambda k: k.set_options["logging.progress"],
            "set {origin}",
        ),
        Rule(lambda k: k.system.display != "none", lambda _: "bar", "a {k.system.display} is here"),
        default_value("plain", "no terminal here"),
    ),
    "logging.ranks": user_value_or(
        "logging.ranks", "first", "the first process prints, the others say the same"
    ),
}

REFUSALS: Refusals = {
    "profile": (
        Constraint(
            lambda k: int((k.set_options.get("profile") or "0:0").split(":")[1]) > k["total_steps"],
            lambda k: (
                f"profile={k.set_options['profile']!r} goes beyond the run of {k['total_steps']} "
                "steps. "
                "Use earlier steps, or a longer run."
            ),
        ),
    ),
    "checkpoint.keep_every": (
        Constraint(
            lambda k: (
                "epoch" in (k.set_options.get("checkpoint.keep_every") or "")
                and k["steps_per_epoch"] is None
            ),
            lambda k: (
                f"checkpoint.keep_every={k.set_options['checkpoint.keep_every']!r} has no length "
                "in "
                "steps: the training data is a stream that does not say how many samples it has. "
                "Say it in steps, such as '1000 steps'."
            ),
        ),
    ),
    "checkpoint.every": (require_whole_epochs("checkpoint.every"),),
    "logging.every": (require_whole_epochs("logging.every"),),
}
