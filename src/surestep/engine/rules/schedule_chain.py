"""What a chain of schedules cannot be."""

from surestep.config.schedule import StageSpec, parse_stage
from surestep.engine.plan.plan import Constraint, PlanContext
from surestep.engine.rules.schedule_spec import warmup_steps
from surestep.engine.schedule.registry import CATALOG, NOT_IN_STAGES, NOT_STAGES


def _problem(k: PlanContext) -> str | None:
    """Say what is wrong with the chain that was said; None where nothing is."""
    texts: tuple[str, ...] = k.set_options.get("schedule.chain", ())
    stages = [parse_stage(text) for text in texts]
    for text, stage in zip(texts, stages, strict=True):
        found = _problem_of(k, stage)
        if found is not None:
            return f"schedule.chain: {text!r}: {found}"
    for text, stage in zip(texts[:-1], stages[:-1], strict=True):
        if stage.length is None:
            return (
                f"schedule.chain: {text!r} has no length, which only the last stage may leave out. "
                f"Write '{text} 10%' or '{text} 500 steps'."
            )
    sizes = [k.length_in_steps(stage.length) for stage in stages if stage.length is not None]
    left = k["total_steps"] - warmup_steps(k)
    if sum(sizes) > left + 1e-6 or (len(sizes) < len(stages) and sum(sizes) >= left):
        return (
            f"schedule.chain: its stages take {sum(sizes):g} steps, and the run has {left:g} for "
            "them. Shorten a stage, or train longer."
        )
    return None


def _problem_of(k: PlanContext, stage: StageSpec) -> str | None:
    if stage.name == "warmup":
        foreign = [option for option in stage.options if option != "warmup_start"]
        return f"warmup takes warmup_start, not {foreign[0]}." if foreign else None
    if stage.name in NOT_STAGES:
        return f"{stage.name} stands alone. Stages are: {', '.join(_stage_names())}."
    entry = CATALOG[stage.name]
    takes = [option for option in entry.takes if option not in NOT_IN_STAGES]
    foreign = [option for option in stage.options if option not in takes]
    if foreign:
        return f"{stage.name} takes {', '.join([*takes, 'scale'])} here, not {foreign[0]}."
    for option in entry.needs:
        if option not in stage.options:
            return f"{stage.name} needs a {option}: write {option}={_written(option)} behind it."
    if stage.name == "cosine_restarts" and ("T_0" in stage.options) == ("cycles" in stage.options):
        return "cosine_restarts needs one of T_0 and cycles: write cycles=5 behind it."
    if stage.name == "warmup_stable_decay" and stage.length is not None:
        decay = str(stage.options.get("decay", entry.takes["decay"].value))
        if k.length_in_steps(decay) > k.length_in_steps(stage.length):
            return f"its decay={decay} is longer than the stage. Write a shorter decay behind it."
    return None


def _written(option: str) -> str:
    return {"step_size": "30epochs", "milestones": "50%,75%"}.get(option, "0.95")


def _stage_names() -> list[str]:
    return ["warmup", *(name for name in CATALOG if name not in NOT_STAGES)]


CHAIN = (Constraint(lambda k: _problem(k) is not None, lambda k: str(_problem(k))),)
