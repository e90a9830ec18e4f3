"""Optuna's samplers and pruners, made by their names.

The sampler of a trial is seeded by the seed of the study and the number of the trial. What it
proposes depends on these and on the earlier trials, and not on which worker asks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from surestep.base.errors import ConfigError
from surestep.tuning.methods import AUTO, PRUNERS, SAMPLERS, Method, parse_method
from surestep.tuning.storage import require_optuna

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

    from surestep.tuning.settings import StudySettings
    from surestep.tuning.space import Space


_MULTI_OBJECTIVE = ("tpe", "random", "grid", "qmc", "gp", "none")


def check_methods(settings: StudySettings) -> None:
    """Check the sampler and the pruner of a study, and that their packages are installed.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    methods = (("sampler", settings.sampler, SAMPLERS), ("pruner", settings.pruner, PRUNERS))
    faults = []
    for kind, text, known in methods:
        try:
            name, _ = parse_method(kind, text, known)
            _require(kind, name, known[name])
            if name == "grid":
                _ = settings.space.grid_size
                _require_complete(settings)
            if settings.is_multi_objective and name not in _MULTI_OBJECTIVE:
                raise ConfigError(
                    f"--{kind} {name} needs a single objective, and there are "
                    f"{len(settings.objectives)}. Use --{kind} "
                    f"{'none' if kind == 'pruner' else 'tpe'}."
                )
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("\n".join(faults))


def _require_complete(settings: StudySettings) -> None:
    """Reject points that are not on the grid, since a value is missing."""
    for point in settings.enqueued:
        active = (one for one in settings.space.dimensions if one.is_active(point))
        missing = [one.name for one in active if one.name not in point]
        if missing:
            raise ConfigError(
                f"The point {point} has no value for {missing[0]}, and --sampler grid needs one. "
                "Add it, or use another sampler."
            )


def _require(kind: str, name: str, method: Method) -> None:
    for module, package in method.packages.items():
        try:
            import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"--{kind} {name} needs {module} ({error}). Install it: pip install {package}"
            ) from error


def make_sampler(
    name: str,
    space: Space,
    seed: int,
    number: int,
    enqueued: Sequence[Mapping[str, Any]] = (),
) -> BaseSampler:
    """Return the sampler of a trial.

    Args:
        name: its name and options.
        space: of the study.
        seed: of the study.
        number: of the trial.
        enqueued: the points of the first trials.

    Raises:
        ConfigError: there is no such sampler, or a package is missing.
    """
    name, options = parse_method("sampler", name, SAMPLERS)
    _require("sampler", name, SAMPLERS[name])
    samplers = require_optuna().samplers
    if name in ("grid", "qmc"):
        from surestep.tuning.points import FixedSampler, draw_grid_point, draw_sobol_point

        if name == "grid":
            return FixedSampler(space, draw_grid_point(space, seed, number, enqueued))
        number = max(0, number - len(enqueued))  # the sequence covers the space from its start
        return FixedSampler(space, draw_sobol_point(space, seed, number))
    import numpy as np  # late, as Optuna: a study is read without it

    seed_of_trial = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    startup = int(options.get("startup", 0))
    with quiet():
        if name == "tpe":
            return samplers.TPESampler(n_startup_trials=startup, seed=seed_of_trial)  # type: ignore[no-any-return]
        if name == "cmaes":
            return samplers.CmaEsSampler(  # type: ignore[no-any-return]
                n_startup_trials=startup, seed=seed_of_trial, warn_independent_sampling=False
            )
        if name == "gp":
            return samplers.GPSampler(  # type: ignore[no-any-return]
                n_startup_trials=startup, seed=seed_of_trial, warn_independent_sampling=False
            )
        return samplers.RandomSampler(seed=seed_of_trial)  # type: ignore[no-any-return]


def make_pruner(name: str, evaluations: int = 0) -> BasePruner:
    """Return a pruner. Its steps are the evaluations of a run, from 1.

    Args:
        name: its name and options.
        evaluations: how many a trial makes, for `warmup=auto`.

    Raises:
        ConfigError: there is no such pruner, or a package is missing.
    """
    name, options = parse_method("pruner", name, PRUNERS)
    _require("pruner", name, PRUNERS[name])
    pruners: Any = require_optuna().pruners
    warmup = options.get("warmup", 0)
    # A quarter: later, less is saved; earlier, good trials are pruned (docs/search.md).
    warmup = evaluations // 4 if warmup == AUTO else int(warmup)
    # Optuna may prune at the step `n_warmup_steps`: the first one after the warmup.
    counts = (int(options.get("startup", 0)), warmup + 1)
    factor, first = int(options.get("factor", 2)), int(options.get("min", 1))
    made: BasePruner
    with quiet():
        if name == "median":
            made = pruners.MedianPruner(*counts)
        elif name == "percentile":
            made = pruners.PercentilePruner(options["keep"], *counts)
        elif name == "patient":
            made = pruners.PatientPruner(pruners.MedianPruner(*counts), int(options["patience"]))
        elif name == "halving":
            made = pruners.SuccessiveHalvingPruner(first, factor)
        elif name == "hyperband":
            made = pruners.HyperbandPruner(first, int(options["max"]) or "auto", factor)
        elif name == "wilcoxon":
            made = pruners.WilcoxonPruner(p_threshold=options["p"], n_startup_steps=warmup)
        else:
            made = pruners.NopPruner()
    return made


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore the warnings of Optuna: parts that are experimental, and NaN in reports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
