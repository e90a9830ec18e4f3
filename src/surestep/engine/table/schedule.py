"""The learning-rate schedule."""

from surestep.engine.plan import Refusal
from surestep.engine.table.rows import Refusals, Rows, plain


def _refuse_without_floor(option: str) -> Refusal:
    return Refusal(
        lambda k: option in k.said and k["schedule.name"] == "constant",
        lambda k: (
            f"{option}={k.said[option]!r} needs a rate that falls, and schedule.name is constant. "
            "Say schedule.name='cosine', or leave it out."
        ),
    )


ROWS: Rows = {
    "schedule.name": plain("schedule.name", "constant", "nothing said: the rate is left alone"),
    "schedule.warmup": plain("schedule.warmup", "0%", "nothing said: no warm-up"),
    "schedule.min_lr_ratio": plain("schedule.min_lr_ratio", 0.0, "down to zero"),
    "schedule.floor": plain("schedule.floor", "scale", "the floor is reached at the end"),
    "schedule.every": plain("schedule.every", "1 step", "as smooth as can be"),
}

REFUSALS: Refusals = {
    "schedule.min_lr_ratio": (_refuse_without_floor("schedule.min_lr_ratio"),),
    "schedule.floor": (_refuse_without_floor("schedule.floor"),),
    "schedule.every": (
        Refusal(
            lambda k: k.warmup() > k["total_steps"],
            lambda k: (
                f"schedule.warmup={k['schedule.warmup']!r} is {k.warmup():g} steps, longer than "
                f"the run of {k['total_steps']} steps. Use a shorter warm-up or a longer run."
            ),
        ),
    ),
}
