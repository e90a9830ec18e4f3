"""What differs between a run and the setup it resumes with: name, before, now, effect."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from surestep.base.errors import ConfigError, SurestepError, suggest_names
from surestep.config.config import LENGTHS, Config, iter_options, option_info
from surestep.config.option import (
    BATCHES,
    INITIAL,
    UNKNOWN,
    ResumeEffect,
    blocked,
    incompatible,
    not_bitwise,
    safe,
)
from surestep.engine.plan.plan import Plan
from surestep.engine.schedule.lr import PlateauState, make_lr_factor, momentum
from surestep.engine.schedule.registry import Factor, UserFunction
from surestep.engine.state.average import with_swa_lr
from surestep.engine.state.state import Progress
from surestep.trainer.former_items import count_first_items
from surestep.trainer.planning import PreparedTask

NOT_SET = "not set"
COUNT, SOME_SAMPLES, EXCLUDED = "train samples", "some samples", "exclude_samples"  # of a dataset
WORKERS, FIRST_SAMPLES = "data.num_workers", "first samples"  # of a stream
_LISTED = 24  # rows of a table
_COMPARED_STEPS = 10_000  # two schedules are compared at each step, or at this many
_WORKERS_SPLIT = blocked("each worker reads a share of the stream, so the batches would differ")
_OF_STEPS = ("blocked", "incompatible")  # effects of the options that a step depends on
_EVALUATIONS_COUNT = not_bitwise(
    "early stopping or the learning rate depends on the number of evaluations"
)
_RESHARDED = not_bitwise("sums and dropout are computed over other shards of the batch")
NOT_OPTIONS: Mapping[str, ResumeEffect] = {  # an option declares its own effect in `config/`
    "data.sampler": BATCHES,
    "batch_transform": BATCHES,
    "parallel.ranks": _RESHARDED,
    "parallel.rank": _RESHARDED,
    "parallel.backend": not_bitwise("another backend may sum in a different order"),
    "task.": blocked("the recipe would be called with another value"),
    "recipe": blocked("the run would resume with different code"),
    "recipe.path": safe("the same file in another folder"),
    "code": not_bitwise("it may compute differently than so far"),
    "data": blocked("it would train on other samples"),
    "data.val": not_bitwise("values so far are of other samples, so a best one does not count"),
    "seeds": not_bitwise(
        "numpy and random draw other numbers than so far, and so do data that is made when it is "
        "read and models that draw in evaluations"
    ),
    "loss": blocked("another function would be minimized"),
    "items": blocked("the loss would be divided by another number than so far"),
    "model": incompatible("a checkpoint of one does not fit the other"),
    "modules": blocked("another function would be trained than so far"),
    "settings": not_bitwise("how your module uses it is not known"),
    "torch": not_bitwise("another build of torch may round differently"),
    "surestep": not_bitwise("another version may compute differently"),
    "checkpoint.min_seconds": safe("it changes when the run saves, and not what it trains"),
    "data.decoded_bytes": safe("images are decoded again or copied, with the same pixels"),
    "threads": not_bitwise("another number of threads sums in a different order"),
}
_NOT_DONE = (None, False, "off")


class ConfigChange(NamedTuple):
    """One thing that differs: what allows it, both values, the effect, its name in tables."""

    name: str
    before: Any
    now: Any
    resume: ResumeEffect
    shown: str

    def as_json(self) -> dict[str, Any]:
        """Return it as events record it."""
        return {
            "name": self.shown,
            "before": self.before,
            "now": self.now,
            "effect": self.resume.effect,
            "reason": self.resume.reason,
        }


def resume_effect(name: str) -> ResumeEffect:
    """Return the effect on resume of a change of an option, or of another part of a run."""
    if name.startswith("optimizers."):
        name = name.split(".", 2)[2]
    declared = option_info(name)
    if declared is not None and declared.resume is not None:
        return declared.resume
    return NOT_OPTIONS.get(name) or NOT_OPTIONS.get(name.partition(".")[0] + ".") or UNKNOWN


def compare(
    before: Mapping[str, Any], now: Mapping[str, Any], planned: PreparedTask, progress: Progress
) -> list[ConfigChange]:
    """List what differs between two identities (`run_identity`) of a run that is at a progress."""
    return [
        *_run_length(before, planned, progress),
        *_recipe_and_code(before, now),
        *_options(before, now),
        *_single("seeds", before.get("seeds", 1), now["seeds"]),
        *_data(before.get("data") or {}, now["data"]),
        *_validation(before.get("validation") or {}, now["validation"]),
        *_single("loss", before.get("loss"), now["loss"]),
        *_items(before, planned),
        *_single("model", before.get("model"), now["model"]),
        *_modules(before, now),
        *_machine(before.get("machine") or {}, now["machine"]),
    ]


def _change(name: str, before: Any, now: Any, *, shown: str | None = None) -> ConfigChange:
    return ConfigChange(name, before, now, resume_effect(name), shown or name)


def _recipe_and_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List the recipe, imported modules with a changed file, and the recipe's parameters."""
    old, new = before.get("recipe") or {}, now["recipe"]
    if old.get("sha256") != new.get("sha256"):
        names = old.get("name", "Python"), new.get("name", "Python")
        if names[0] == names[1]:
            names = "as it was", "changed"
        yield _change("recipe", *names, shown="recipe file")
    elif old.get("path") != new.get("path"):
        yield _change("recipe.path", old.get("path"), new.get("path"))
    old, new = before.get("code") or {}, now["code"]
    for name in new:
        if old.get(name, new[name]) != new[name]:  # only one of them may import a module
            yield _change("code", "as it was", "changed", shown=f"code of {name}")
    old, new = before.get("task") or {}, now["task"]
    for name in sorted(old.keys() | new.keys()):
        values = old.get(name, NOT_SET), new.get(name, NOT_SET)
        if values[0] != values[1]:
            yield _change(f"task.{name}", *values, shown=f"--task.{name}")


def _machine(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    for name in sorted(before.keys() & now.keys()):
        if before[name] != now[name]:
            yield _change(name, before[name], now[name])


def _options(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List the options with another value, except those that follow from one of their group."""
    old, new = before.get("decided") or {}, now["decided"]
    if not old:
        return
    set_before, set_now = before["config"], now["config"]
    changed = {
        name
        for name in set_before.keys() | set_now.keys()
        if set_before.get(name, NOT_SET) != set_now.get(name, NOT_SET)
    }
    groups = {name.partition(".")[0] for name in changed if "." in name}
    for name in sorted(old.keys() | new.keys()):
        is_other_part = name == "total_steps" or name in LENGTHS or name in now["data"]
        if old.get(name) == new.get(name) or is_other_part:
            continue
        if name not in old and new[name] in _NOT_DONE:  # the release of the run lacked the option
            continue
        effect = _option_effect(name, new)
        follows = "." in name and name.partition(".")[0] in groups
        if name in changed or not (follows or effect.effect == "safe"):
            yield ConfigChange(name, old.get(name), new.get(name), effect, name)


def _option_effect(name: str, decided: Mapping[str, Any]) -> ResumeEffect:
    if name == "validation.every" and (
        decided.get("early_stop.patience") is not None
        or any(
            value == "reduce_on_plateau" and option.endswith("schedule.name")
            for option, value in decided.items()
        )
    ):
        return _EVALUATIONS_COUNT
    if name.endswith("optim.lr"):
        optimizer = name.removesuffix("lr") + "name"
        return INITIAL if decided.get(optimizer) == "rprop" else resume_effect(name)
    return resume_effect(name)


def _data(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    if (COUNT in before) != (COUNT in now):
        kinds = ("a stream", "samples with positions")
        yield _change("data", kinds[COUNT in before], kinds[COUNT in now])
        return
    differing = {name for name in now if before.get(name) not in (None, now[name])}
    if EXCLUDED in differing:
        old, new = (f"{len(known[EXCLUDED])} excluded" for known in (before, now))
        yield _change(EXCLUDED, old, new)
        differing -= {EXCLUDED, COUNT}  # which is why the count differs
    if COUNT in differing:
        differing.discard(SOME_SAMPLES)
    for name in sorted(differing):
        old, new = before[name], now[name]
        if name == WORKERS:
            yield ConfigChange(name, old, new, _WORKERS_SPLIT, name)
        elif new is not None:
            short = [known[:8] if isinstance(known, str) else known for known in (old, new)]
            yield _change("data", *short, shown=name)


def _validation(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List the validation sets that have other samples."""
    for name in before.keys() & now.keys():
        known = before[name]
        for what, value in now[name].items():
            if known.get(what) not in (None, value) and value is not None:
                short = (str(one)[:8] for one in (known[what], value))
                yield _change("data.val", *short, shown=f"{name}: {what}")


def _single(name: str, before: Any, now: Any) -> Iterator[ConfigChange]:
    """Compare a part in one row; a part that is not known is ignored."""
    if before is None or now is None or before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))
        before, now = (", ".join(f"{n}={part.get(n)}" for n in names) for part in (before, now))
    yield _change(name, before, now)


def _items(before: Mapping[str, Any], planned: PreparedTask) -> Iterator[ConfigChange]:
    """Compare what earlier versions counted in the first micro-batch with what is counted now."""
    counted = count_first_items(planned) if "items" not in before else None
    if counted is not None and counted[0] != counted[1]:
        yield _change("items", *(f"{items:g} in the first micro-batch" for items in counted))


def _modules(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List modules of another type or with other settings, if the shapes are the same."""
    old, new = before.get("modules"), now["modules"]
    if before.get("model") != now["model"] or not old:
        return
    for name in {**old, **new}:
        one, other = old.get(name, {}), new.get(name, {})
        types = [str(known.get("type", "none")) for known in (one, other)]
        is_torch = any(kind.startswith("torch.nn.") for kind in types)
        effect = "modules" if is_torch else "settings"  # what your settings mean is not known
        if types[0] != types[1]:
            short = [kind.rpartition(".")[2] for kind in types]
            yield _change(effect, *short, shown=f"model: {name}")
            continue
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                values = str(one.get(key)), str(other.get(key))
                yield _change(effect, *values, shown=f"model: {name}.{key}")


def _run_length(
    before: Mapping[str, Any], planned: PreparedTask, progress: Progress
) -> Iterator[ConfigChange]:
    """Compare the length of the run.

    Some schedules and averages depend on the total length. If both lengths give the same values up
    to now, the run resumes as if it had always had the new one.
    """
    set_before, set_now = before["config"], planned.config.set_options()
    old, new = before.get("decided", {}).get("total_steps"), planned.plan.total_steps
    if old == new:  # a train_step() of the user may have gone beyond it
        return
    if progress.step > new:
        effect = incompatible(f"it is at step {progress.step} already")
    elif old is None or all(set_before.get(n) == set_now.get(n) for n in LENGTHS):
        return
    else:
        effect = _length_effect(before, planned, progress.steps_taken)
    name = next((option for option in LENGTHS if option in set_now), "epochs")
    yield ConfigChange(name, _length(set_before, old), _length(set_now, new), effect, name)


def _length(options: Mapping[str, Any], steps: int | None) -> str:
    epochs = options.get("epochs")
    of = "" if epochs is None else f"{epochs:g} epoch{'' if epochs == 1 else 's'}, "
    return f"{of}{'?' if steps is None else steps} steps"


def _length_effect(before: Mapping[str, Any], planned: PreparedTask, taken: int) -> ResumeEffect:
    """Compare the schedule and the average up to now under both lengths."""
    # Options of ranks, devices and records do not act on a schedule, and may not fit this process.
    kept = {
        name: value
        for name, value in before["config"].items()
        if resume_effect(name).effect in _OF_STEPS and not name.startswith("parallel.")
    }
    try:
        plan = planned.decide(Config.from_options(kept))
    except SurestepError:
        return blocked("what the old length did to the schedule is not known")
    pairs = {"": (plan, planned.plan)}
    if planned.plan.optimizers:
        pairs = {f" of {n}": (plan.optimizers[n], p) for n, p in planned.plan.optimizers.items()}
    reasons: list[str] = []
    for optimizer, (old, new) in pairs.items():
        reasons += _differences(optimizer, old, new, planned.task.schedule, taken)
    if reasons:
        return blocked("; ".join(reasons))
    return safe("so far the learning rate does not depend on the length of the run")


def _differences(
    optimizer: str, old: Plan, new: Plan, custom: UserFunction | None, taken: int
) -> list[str]:
    """Return what would have been different in the steps so far, with numbers."""
    lr_before, lr_now = (
        with_swa_lr(
            make_lr_factor(plan.schedule, PlateauState(), custom),
            plan.average,
            plan.optim_lr or 1.0,
        )
        for plan in (old, new)
    )
    momenta = momentum(old.schedule), momentum(new.schedule)
    reasons = []
    differing = _first_difference(lr_before, lr_now, taken)
    if differing is not None or _first_difference(*momenta, taken) is not None:
        # A warm-up may be over: both rates are then equal, and those before it were not.
        was = _shown_lr(lr_before(max(0, taken - 1)), old.optim_lr)
        then = _shown_lr(lr_now(taken), new.optim_lr)
        numbers = f"at step {taken} it was {was}, and it would continue at {then}"
        if was == then and differing is not None:
            was, then = (
                _shown_lr(lr_before(differing), old.optim_lr),
                _shown_lr(lr_now(differing), new.optim_lr),
            )
            numbers = f"in step {differing + 1} it was {was}, and would have been {then}"
        spans = old.schedule.warmup, new.schedule.warmup
        warmup = ""
        if spans[0] != spans[1]:
            warmup = f" by its warm-up, which was {spans[0]:g} steps and would be {spans[1]:g}"
        reasons.append(
            f"the learning rate{optimizer} by {new.schedule.name} depends on the length{warmup}: "
            f"{numbers}"
        )
    starts = old.average.start, new.average.start
    if old.average != new.average and taken > min(starts):
        reasons.append(
            f"the average{optimizer} started at step {starts[0]}, and would start at step "
            f"{starts[1]}"
        )
    return reasons


def _first_difference(old: Factor | None, new: Factor | None, taken: int) -> int | None:
    """Return the first of the steps so far in which two factors differ; None if none does."""
    if old is None or new is None:
        return None if old is new else 0
    stride = max(1, taken // _COMPARED_STEPS)
    compared = (*range(0, taken, stride), max(0, taken - 1))
    return next((step for step in compared if old(step) != new(step)), None)


def _shown_lr(factor: float, lr: float | None) -> str:
    return f"{factor:.3g} of the peak" if lr is None else f"{factor * lr:.3g}"


def table(changes: Iterable[ConfigChange]) -> list[str]:
    """Return the lines of a table: name, before, now, effect."""
    rows = [(c.shown, _shown(c.before), _shown(c.now), str(c.resume)) for c in changes]
    listed, more = rows[:_LISTED], len(rows) - _LISTED
    first, second, third = (max(map(len, column)) for column in [*zip(*listed, strict=True)][:3])
    lines = [
        f"  {name:<{first}}  {before:<{second}}  ->  {now:<{third}}  {effect}"
        for name, before, now, effect in listed
    ]
    return [*lines, f"  and {more} more"] if more > 0 else lines


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_allow(allow: Iterable[str]) -> None:
    """Raise a ConfigError if an allowed name cannot change on resume."""
    if isinstance(allow, str):
        raise ConfigError(
            f"allow={allow!r} is a string. Pass the names as a tuple: allow=({allow!r},)."
        )
    options = [name for name, _ in iter_options()]
    groups = {name.partition(".")[0] for name in options if "." in name}
    parts = [name for name in NOT_OPTIONS if "." not in name]
    known = [*options, *sorted(groups), "task", *parts]
    for name in allow:
        if name not in known and not name.startswith(("task.", "optimizers.")):
            raise ConfigError(
                f"allow={name!r} is not something that can change on resume. "
                f"{suggest_names(name, known)}"
            )


def apply_allow(
    changes: Iterable[ConfigChange], allow: Collection[str] | None
) -> list[ConfigChange]:
    """Mark blocked changes that are allowed by their name or group; None allows all."""
    result = []
    for change in changes:
        group = change.name.partition(".")[0]
        groups = [] if group in NOT_OPTIONS else [group]  # "data" is not how it is loaded
        is_allowed = allow is None or not {change.name, *groups}.isdisjoint(allow)
        if is_allowed and change.resume.effect == "blocked":
            change = change._replace(resume=ResumeEffect("allowed", change.resume.reason))
        result.append(change)
    return result


def may_change_data(changes: Iterable[ConfigChange]) -> bool:
    """Return whether a run with these changes may read other samples, as the user knows."""
    return any(
        change.resume.effect == "allowed" or change.name in ("code", "seeds") for change in changes
    )
