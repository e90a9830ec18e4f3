"""`--from STUDY`: trials of another study, from which the sampler of a new one learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError
from surestep.base.text import format_count
from surestep.tuning.lock import FileLock
from surestep.tuning.open import read_study
from surestep.tuning.settings import StudySettings, read_settings
from surestep.tuning.space import Space
from surestep.tuning.storage import require_optuna
from surestep.tuning.study import SearchStudy

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from surestep.tuning.rows import TrialRow

_LOCK = "study.lock"


def choose_warm_start(
    settings: StudySettings, source: Path, recorded: StudySettings | None
) -> tuple[StudySettings, str]:
    """Return settings that record which trials of another study are added, and a line about it.

    Args:
        settings: of the new study.
        source: folder of the other study.
        recorded: of the study that exists already, which keeps its trials; else None.

    Raises:
        ConfigError: the other study has other objectives, or no trial in the space.
        RunError: it cannot be read.
    """
    before = None if recorded is None else recorded.warm_start
    if before is not None and before["name"] == read_settings(source).name:
        return replace(settings, warm_start=before), ""
    study = read_study(source)
    if study.settings.objectives != settings.objectives:
        shown = ", ".join(f"{name} ({way})" for name, way in study.settings.objectives)
        raise ConfigError(
            f"The objectives of {source} are {shown}. Its trials can start only a search with the "
            "same objectives. Set them, or leave --from out."
        )
    differences = _list_differences(study.settings, settings)
    ended = [row for row in study.rows() if row.state in ("finished", "pruned")]
    numbers = [row.number for row in ended if _make_trial(row, settings, bool(differences), {})]
    if not numbers:
        raise ConfigError(
            f"No trial of {source} has a result and is in the space of this search. Leave --from "
            "out, or search its space."
        )
    warm_start = {
        "study": str(source),
        "name": study.settings.name,
        "numbers": numbers,
        "is_other": bool(differences),
    }
    line = f"{len(numbers)} of {format_count(len(ended), 'trial')} of {source} are known"
    if differences:
        line += f"; without their curves, since it differs: {', '.join(differences)}"
    return replace(settings, warm_start=warm_start), f"{line}."


def _list_differences(source: StudySettings, settings: StudySettings) -> list[str]:
    """Return the names of what makes a trial of one study another one than in the other."""
    before, now = dict(source.as_json()["fixed"]), dict(settings.as_json()["fixed"])
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    is_same = source.recipe["sha256"] == settings.recipe["sha256"]
    return names if is_same else ["the recipe", *names]


def add_warm_start(study: SearchStudy) -> None:
    """Add the trials of another study that the settings name, unless they are there already.

    Raises:
        RunError, ConfigError: the other study cannot be read.
    """
    chosen = study.settings.warm_start
    if chosen is None:
        return
    with FileLock(study.folder / _LOCK):
        missing = set(chosen["numbers"]) - study.added_numbers()
        if not missing:
            return
        for row in read_study(Path(chosen["study"])).rows():
            if row.number in missing:
                origin = {"from": {"study": chosen["name"], "number": row.number}}
                trial = _make_trial(row, study.settings, chosen["is_other"], origin)
                assert trial is not None
                study.add_trial(trial)


def _make_trial(
    row: TrialRow, settings: StudySettings, is_other: bool, attrs: Mapping[str, Any]
) -> FrozenTrial | None:
    """Return a trial as `Study.add_trial` takes it; None if a sampler learns nothing from it.

    A trial of a study with other options has no curve here: pruners would compare it with those of
    this study. So only finished ones are taken from it. What a sampler stored with a trial is left
    out, since it may be a pickle.
    """
    optuna = require_optuna()
    params = _fit(row.params, settings.space)
    values, constraints = row.values, settings.constraints
    if row.state == "pruned" and not is_other and row.intermediate:
        values = (row.intermediate[max(row.intermediate)],)
    has_all = all(one.name in row.measured for one in constraints)
    if params is None or values is None or any(map(math.isnan, values)) or not has_all:
        return None
    distributions = settings.space.distributions()
    state = "COMPLETE" if row.state == "finished" else "PRUNED"
    made: FrozenTrial = optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        values=list(values),
        params=params,
        distributions={key: distributions[key] for key in params},
        intermediate_values={} if is_other else dict(row.intermediate),
        user_attrs=dict(attrs),
        constraints={one.text: one.measure_violation(row.measured) for one in constraints},
    )
    return made


def _fit(params: Mapping[str, Any], space: Space) -> dict[str, Any] | None:
    """Return the values of a trial as Optuna stores them in this space; None if it is outside."""
    try:
        values = space.choose(lambda dimension: dimension.fit(params[dimension.name]))
    except (ValueError, KeyError):
        return None
    return space.stored(values) if values.keys() == params.keys() else None
