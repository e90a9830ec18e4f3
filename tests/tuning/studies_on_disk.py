"""Studies whose trials are a formula instead of a run."""

import json
import math

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from surestep.tuning.open import open_study
from surestep.tuning.settings import StudySettings
from surestep.tuning.space import Space

SPACE = {"b": "int(1, 8)", "lr": "log(1e-5, 1e-1)", "name": ["x", "y", [1, 2]]}
GRID = {"b": "int(1, 8)", "name": ["x", "y", [1, 2]]}


RECIPE = {"name": "formula", "path": "/formula.py", "sha256": "0" * 64}


def make_settings(
    *, recipe=RECIPE, space=SPACE, objectives=(("val/loss", "min"),), trials=12, **options
):
    return StudySettings(
        recipe=recipe,
        fixed={"epochs": "3", "optim.betas": ("0.9", "0.95")},
        space=Space.from_json(space),
        objectives=objectives,
        trials=trials,
        **options,
    )


def make_study(folder, storage=None, *, settings=None, **options):
    return open_study(folder, settings or make_settings(**options), storage)


def open_by_optuna(folder):
    """Open the storage of a study by Optuna alone."""
    backend = JournalFileBackend(str(folder / "study.log"))
    name = json.loads((folder / "study.json").read_text())["name"]
    return optuna.load_study(study_name=name, storage=JournalStorage(backend))


def loss(params):
    return (
        abs(math.log10(params.get("lr", 1e-3)) + 3) + params["b"] / 8 + (params.get("name") != "y")
    )


def run_trial(study, trial, evaluations=3):
    """Report a trial that improves, and end it; return whether it was pruned."""
    for number in range(1, evaluations + 1):
        if study.report(trial, number, loss(trial.params) + 1 / number):
            return study.prune(trial, "worse than the median")
    study.finish(trial, [loss(trial.params)], seconds=1.5)
    return False


def run_all(study):
    """Run trials until there are no more; return what was claimed."""
    claimed = []
    while (trial := study.claim_trial()) is not None:
        run_trial(study, trial)
        claimed.append(trial)
    return claimed
