"""What differs between a run and the config it resumes with: name, before, now, effect."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from surestep.base.errors import ConfigError, suggest_names
from surestep.config.config import LENGTHS, iter_options
from surestep.config.option import INITIAL, ResumeEffect
from surestep.trainer.modules import changed_modules
from surestep.trainer.resume_effects import (
    EVALUATIONS_COUNT,
    NOT_OPTIONS,
    WORKERS_SPLIT,
    resume_effect,
)

NOT_SAID = "not set"
COUNT, LOOKED_AT, SKIPPED = "train samples", "some samples", "exclude_samples"  # of map-style data
CODE = "code of "  # a module
MODULES = 8  # whose code changed: so many lines tell of it
WORKERS, FIRST = "data.num_workers", "first samples"  # of a stream


class ConfigChange(NamedTuple):
    """One thing that differs.

    Attributes:
        name: what it is allowed by.
        before: what the run was last gone on with.
        now: what is asked.
        resume: its effect when the run resumes.
        shown: what the table calls it.
    """

    name: str
    before: Any
    now: Any
    resume: ResumeEffect
    shown: str

    def as_json(self) -> dict[str, Any]:
        """Return it for the events."""
        of = {"name": self.shown, "before": self.before, "now": self.now}
        return {**of, "effect": self.resume.effect, "reason": self.resume.reason}


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[ConfigChange]:
    """List what differs between two identities, except for the length of the run."""
    return [
        *_recipe(before.get("recipe") or {}, now["recipe"]),
        *_code(before.get("code") or {}, now["code"]),
        *_values("task", before.get("task") or {}, now["task"], prefix="task."),
        *_options(before, now),
        *_data(before.get("data") or {}, now["data"]),
        *_whole("loss", before.get("loss"), now["loss"]),
        *_whole("model", before.get("model"), now["model"]),
        *_modules(before, now),
        *_values("machine", before.get("machine") or {}, now["machine"], both=True),
    ]


def _recipe(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    if before.get("sha256") != now.get("sha256"):
        old, new = before.get("name", "Python"), now.get("name", "Python")
        changed = "as it was", "changed"
        yield _change("recipe", *(changed if old == new else (old, new)), shown="recipe file")
    elif before.get("path") != now.get("path"):
        yield _change("recipe.path", before.get("path"), now.get("path"))


def _code(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List modules whose files are others; what only one of them imported is nothing."""
    differ = [name for name in now if name in before and before[name] != now[name]]
    named = [f"{CODE}{name}" for name in differ[:MODULES]]
    if len(differ) > MODULES:
        named[-1] = f"{CODE}{len(differ) - MODULES + 1} more"
    for shown in named:
        yield _change("code", "as it was", "changed", shown=shown)


def _values(
    part: str,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    prefix: str = "",
    both: bool = False,
) -> Iterator[ConfigChange]:
    """List the names of a part that differ; with `both`, of those that stand in both."""
    names = before.keys() & now.keys() if both else before.keys() | now.keys()
    for name in sorted(names):
        old, new = before.get(name, NOT_SAID), now.get(name, NOT_SAID)
        if old != new:
            shown = f"--task.{name}" if part == "task" else name
            yield _change(prefix + name, old, new, shown=shown)


def _options(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List the options that were decided differently.

    An option that is not set is listed if no option that is set explains its change, as on another
    machine.
    """
    old, new = before.get("decided") or {}, now["decided"]
    changed = {
        name
        for name in before["config"].keys() | now["config"].keys()
        if before["config"].get(name, NOT_SAID) != now["config"].get(name, NOT_SAID)
    }
    groups = {name.partition(".")[0] for name in changed if "." in name}
    for name in sorted(old.keys() | new.keys() if old else ()):
        a, b = old.get(name), new.get(name)
        if a == b or name == "total_steps" or name in LENGTHS or _of_stream(name, now):
            continue
        effect = _option_effect(name, now)
        follows = "." in name and name.partition(".")[0] in groups
        if name in changed or not (follows or effect.effect == "safe"):
            yield ConfigChange(name, a, b, effect, name)


def _of_stream(name: str, now: Mapping[str, Any]) -> bool:
    return name in now["data"]


def _option_effect(name: str, now: Mapping[str, Any]) -> ResumeEffect:
    decided = now["decided"]
    counted = decided.get("early_stop.patience") is not None
    if name == "validation.every" and (
        counted or decided.get("schedule.name") == "reduce_on_plateau"
    ):
        return EVALUATIONS_COUNT
    optimizer, dot, option = name.rpartition("optim.lr")
    if dot and not option and decided.get(f"{optimizer}optim.name") == "rprop":
        return INITIAL
    return resume_effect(name)


def _data(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    if (COUNT in before) != (COUNT in now):
        kinds = ("a stream", "samples with positions")
        yield _change("data", kinds[COUNT in before], kinds[COUNT in now])
        return
    differ = {name for name in now if before.get(name) not in (None, now[name])}
    if SKIPPED in differ:
        old, new = (f"{len(each[SKIPPED])} left out" for each in (before, now))
        yield _change(SKIPPED, old, new)
        differ.discard(COUNT)  # there are fewer for that reason
    if COUNT in differ:
        differ.discard(LOOKED_AT)
    for name in sorted(differ - {SKIPPED}):
        if name == WORKERS:
            yield ConfigChange(name, before[name], now[name], WORKERS_SPLIT, name)
        elif now[name] is not None:
            old, new = _short(before[name]), _short(now[name])
            yield _change("data", old, new, shown=name)


def _short(known: Any) -> Any:
    """Cut a digest; a number stays."""
    return known[:8] if isinstance(known, str) else known


def _whole(name: str, before: Any, now: Any) -> Iterator[ConfigChange]:
    """Compare a part as one; where it is not known, nothing is said of it."""
    if before is None or now is None or before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        names = [each for each in before.keys() | now.keys() if before.get(each) != now.get(each)]
        before = ", ".join(f"{each}={before.get(each)}" for each in sorted(names))
        now = ", ".join(f"{each}={now.get(each)}" for each in sorted(names))
    yield _change(name, before, now)


def _modules(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ConfigChange]:
    """List modules of other types or settings; nothing where the shapes differ as well."""
    if before.get("model") != now["model"] or not before.get("modules"):
        return
    for is_torchs in (True, False):
        differ = [
            found[:3]
            for found in changed_modules(before["modules"], now["modules"])
            if found[3] is is_torchs
        ]
        if len(differ) > MODULES:
            more = len(differ) - MODULES + 1
            differ[MODULES - 1 :] = [(f"{more} more", "as it was", "changed")]
        for name, old, new in differ:
            yield _change("modules" if is_torchs else "settings", old, new, shown=f"model: {name}")


def _change(name: str, before: Any, now: Any, *, shown: str | None = None) -> ConfigChange:
    return ConfigChange(name, before, now, resume_effect(name), shown or name)


def table(changes: Iterable[ConfigChange]) -> list[str]:
    """Return the lines of a table: name, before, now, effect."""
    rows = [(each.shown, _shown(each.before), _shown(each.now), each.resume) for each in changes]
    widths = [max(len(str(row[column])) for row in rows) for column in range(3)] if rows else []
    return [
        "  {:<{}}  {:<{}}  ->  {:<{}}  {}".format(
            *(part for pair in zip(row[:3], widths, strict=True) for part in pair), row[3]
        )
        for row in rows
    ]


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def allowed_names() -> list[str]:
    """List what may be allowed by name: options, groups of them, and parts of a run."""
    options = [name for name, _ in iter_options()]
    names = [*options, *(name.partition(".")[0] for name in options if "." in name), "task"]
    return list(dict.fromkeys([*names, *(name for name in NOT_OPTIONS if "." not in name)]))


def check_allow(allow: Iterable[str]) -> None:
    """Check that every allowed name can change on resume.

    Raises:
        ConfigError: a name cannot.
    """
    if isinstance(allow, str):
        raise ConfigError(
            f"allow={allow!r} is a string. Pass the names as a tuple: allow=({allow!r},)."
        )
    known = allowed_names()
    for name in allow:
        if name not in known and not name.startswith(("task.", "optimizers.")):
            raise ConfigError(
                f"allow={name!r} is not something that can change on resume. "
                f"{suggest_names(name, known)}"
            )


def apply_allow(
    changes: Iterable[ConfigChange], allow: Collection[str] | None
) -> list[ConfigChange]:
    """Mark the changes that are allowed by name; None allows all that can be."""
    return [
        each._replace(resume=ResumeEffect("allowed", each.resume.reason))
        if each.resume.effect == "blocked" and (allow is None or _is_named(each.name, allow))
        else each
        for each in changes
    ]


def _is_named(name: str, allow: Collection[str]) -> bool:
    """Return whether a name or its group is allowed; `data` is the data, not how it is loaded."""
    group = name.partition(".")[0]
    return name in allow or (group in allow and group not in NOT_OPTIONS)
