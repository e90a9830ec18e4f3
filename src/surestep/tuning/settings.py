"""The settings of a study, recorded in its `study.json`, and how they are compared."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from surestep.base.errors import ConfigError, RunError
from surestep.record.io import explain_write_errors, read_json, to_jsonable, write_json
from surestep.record.schemas import STUDY, STUDY_FORMAT
from surestep.tuning.constraints import Constraint, parse_constraint
from surestep.tuning.lock import FileLock
from surestep.tuning.methods import DEFAULT_PRUNER, PRUNERS, SAMPLERS, complete_method
from surestep.tuning.result import read_result
from surestep.tuning.space import Space

STUDY_FILE = "study.json"
Direction = Literal["min", "max"]
_HINT = "Put a copy of it back, or start a new study: surestep search RECIPE --study FOLDER"
_NOT_COMPARED = ("name", "trials")  # a command that continues a study may have another


@dataclass(frozen=True)
class StudySettings:
    """What all trials of a study have in common.

    Attributes:
        recipe: "name", "path" and "sha256" of the recipe; "package", if it is a module of one.
        fixed: options of the Config and parameters of the recipe ("task.NAME") that are the same in
            all trials, by full name, as they were typed.
        space: the options that differ.
        objectives: name and direction of each: a metric of the runs, "seconds", "parameters" or
            "peak_memory".
        trials: the whole number of trials, by all workers together.
        sampler: its name and all of its options, such as "tpe:startup=10".
        pruner: its name and all of its options, such as "percentile:keep=25,startup=5,warmup=auto".
        seed: of the sampler.
        storage: URL of a database, without a password; None is `study.log` in the folder.
        threads: of each training process.
        nproc: training processes of each trial.
        name: of the study in the storage; "" chooses one.
        enqueued: values that the first trials have, by the name of the option; the sampler chooses
            those that a point leaves out.
        where: constraints that a trial has to satisfy so that it can be the best.
        warm_start: the trials of another study that samplers know: "study" is its folder, "name"
            its name, "numbers" those of its trials, and "is_other" if its other settings differ.
    """

    recipe: Mapping[str, str]
    fixed: Mapping[str, Any]
    space: Space
    objectives: tuple[tuple[str, Direction], ...]
    trials: int
    sampler: str = "tpe"
    pruner: str = DEFAULT_PRUNER
    seed: int = 0
    storage: str | None = None
    threads: int = 1
    nproc: int = 1
    name: str = ""
    enqueued: tuple[Mapping[str, Any], ...] = ()
    where: tuple[str, ...] = ()
    warm_start: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the content of `study.json`."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found |= {"space": self.space.as_json(), "objectives": list(map(list, self.objectives))}
        return {"format": STUDY_FORMAT, **to_jsonable(found)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StudySettings:
        """Return the settings of the content of a `study.json` that fits the schema.

        Raises:
            ConfigError: its space, its sampler or its pruner is invalid.
        """
        values = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        values |= {name: tuple(values.get(name, ())) for name in ("enqueued", "where")}
        if found["format"] == 1:  # it has only the options that were set, and no warmup was 0
            values["sampler"] = complete_method("sampler", found["sampler"], SAMPLERS)
            values["pruner"] = complete_method("pruner", found["pruner"], PRUNERS, auto=0)
        objectives = tuple((name, direction) for name, direction in found["objectives"])
        return cls(**{**values, "space": Space.from_json(found["space"]), "objectives": objectives})

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """What a trial has to satisfy so that it can be the best."""
        return tuple(map(parse_constraint, self.where))

    @property
    def is_multi_objective(self) -> bool:
        """Whether there are several objectives."""
        return len(self.objectives) > 1


def record_settings(folder: Path, settings: StudySettings) -> StudySettings:
    """Create `study.json`, or compare the settings with the recorded ones; return those.

    The recorded number of trials is raised if `settings` has more. The recipe that is returned is
    the one of `settings`: anyone may have written the path in a study that was received.

    Raises:
        ConfigError: they differ, or the study has more trials already.
        RunError: the folder cannot be written, or has an unreadable `study.json` or
            `result.json`.
    """
    path = folder / STUDY_FILE
    if folder.is_file():
        raise ConfigError(f"{folder} is a file, and --study needs a folder. Choose another name.")
    with explain_write_errors(path, "study folder", " with --study"):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "study.lock"):
            if not path.exists():
                name = settings.name or f"{folder.resolve().name}-{secrets.token_hex(4)}"
                recorded = replace(settings, name=name)
                write_json(path, recorded.as_json())
                return recorded
            recorded = read_settings(folder)
            _compare(folder, recorded, settings)
            read_result(folder)  # before trials are trained
            if settings.trials > recorded.trials:
                recorded = replace(recorded, trials=settings.trials)
                write_json(path, recorded.as_json())
            return replace(recorded, recipe=settings.recipe)


def read_settings(folder: Path) -> StudySettings:
    """Read the `study.json` of a study.

    Raises:
        RunError: there is none, or it is unreadable.
    """
    path = folder / STUDY_FILE
    if not path.exists():
        raise RunError(
            f"There is no study in {folder}: {STUDY_FILE} is missing. Pass the folder that "
            "`surestep search` printed, such as searches/digits-20260101-120000."
        )
    found = read_json(path, STUDY, hint=_HINT)
    try:
        return StudySettings.from_json(found)
    except ConfigError as error:
        raise RunError(f"{path} cannot be read: {error} {_HINT}") from error


def _compare(folder: Path, recorded: StudySettings, new: StudySettings) -> None:
    """Reject settings that differ from those of the study.

    Raises:
        ConfigError: lists each difference.
    """
    before, now = _flatten(recorded), _flatten(new)
    before.pop("recipe.path", None)  # another machine may have the recipe in another folder
    path, sha = now.pop("recipe.path", None), "recipe.sha256"
    faults = []
    if before.pop(sha, None) != now.pop(sha, None):
        faults.append(f"{path} was changed since the study in {folder} started.")
    faults += [
        f"{name} is {_shown(before.get(name))} in {folder}, and now {_shown(now.get(name))}."
        f"{_show_method(name, before)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if faults:
        faults.append(
            "All trials of a study have the same settings. Use the same command again, or start a "
            "new study in another folder with --study."
        )
    if new.trials < recorded.trials:
        faults.append(
            f"{folder} is a study of {recorded.trials} trials, and --trials {new.trials} is less. "
            f"--trials is the whole number: it may only grow. Set --trials {recorded.trials}."
        )
    if faults:
        raise ConfigError("\n".join(faults))


def _flatten(settings: StudySettings) -> dict[str, Any]:
    """Return what is compared by name: "sampler", "space.optim.lr"."""
    flat: dict[str, Any] = {}
    for name, value in settings.as_json().items():
        if name in _NOT_COMPARED:
            continue
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat


def _show_method(name: str, recorded: Mapping[str, Any]) -> str:
    """Return how to set the recorded sampler or pruner; the defaults may have changed since."""
    if name not in ("sampler", "pruner"):
        return ""
    return f" To continue the study, pass --{name} {recorded[name]} ({name}= in Python)."


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)
