"""Measure what each pruner saves of a search and what it costs, on six studies and five seeds.

    python -m benchmarks.pruners [--seeds N] [--trials N] [--results FILE] [TASK ...]

A trial is a run of `benchmarks/small_tasks.py` in this process. It reports its evaluations to the
study of a search, which has the default sampler: the trials, their order and what is pruned are
those of `surestep search` with one worker. The results are not times, so other load on the machine
does not change them. The results file has a line for each search; the same command continues it.
"""

import argparse
import gc
import json
import os
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import torch

import surestep
from benchmarks import small_tasks
from surestep.recipes.find import find
from surestep.recipes.load import Recipe, call_recipe, load_file
from surestep.tracking.points import numbers_of
from surestep.tuning.options import SearchOptions, make_settings
from surestep.tuning.rows import ClaimedTrial
from surestep.tuning.settings import StudySettings, record_settings
from surestep.tuning.study import SearchStudy

PRUNERS = (
    "none",
    "median",
    "median:warmup=4",
    "percentile:25",
    "percentile:75",
    "patient:2",
    "halving",
    "hyperband",
    "wilcoxon",
)
SPACE = {
    "optim.lr": "log(1e-4, 1e-1)",
    "optim.weight_decay": "log(1e-4, 1)",
    "schedule.name": ["cosine", "linear", "constant"],
    "task.dropout": "uniform(0, 0.6)",
    "task.width": "logint(8, 64)",
}
METRIC = "val/loss"
MOST = 1.2  # times the best loss without a pruner, in the worst search


@dataclass(frozen=True)
class Outcome:
    """What one search found.

    Attributes:
        task: name of the small task.
        seed: of the search and of its trials.
        trials: that the search had.
        pruner: its name and options.
        loss: the lowest validation loss of a trial that was not pruned.
        evaluations: that all trials made; the same number of steps lies before each.
        pruned: trials.
    """

    task: str
    seed: int
    trials: int
    pruner: str
    loss: float
    evaluations: int
    pruned: int


class Report(surestep.Callback):
    """Reports each evaluation to a study, and ends the run if the study prunes it."""

    def __init__(self, study: SearchStudy, trial: ClaimedTrial) -> None:
        self.study, self.trial = study, trial
        self.values: list[float] = []
        self.is_pruned = False

    def report(self, value: float) -> bool:
        """Report the next evaluation; return whether the study prunes the trial."""
        self.values.append(value)
        number = len(self.values)
        self.is_pruned = self.study.report(self.trial, number, value, small_tasks.EVALUATIONS)
        return self.is_pruned

    def on_evaluate(self, state: Any, metrics: Any) -> surestep.Request | None:
        return surestep.Request.STOP if self.report(numbers_of(metrics)[METRIC]) else None


class Trials:
    """Trains trials; those with the same values give bitwise the same, and are trained once.

    Args:
        recipe: the small tasks.
        fixed: options of all trials.
    """

    def __init__(self, recipe: Recipe, fixed: dict[str, Any]) -> None:
        self._recipe, self._fixed = recipe, fixed
        self._known: dict[str, list[float]] = {}

    def run(self, study: SearchStudy, trial: ClaimedTrial) -> Report:
        """Run a trial to its end, or until it is pruned."""
        report, values = Report(study, trial), json.dumps(trial.params)
        if values in self._known:
            any(report.report(value) for value in self._known[values])
            return report
        call = call_recipe(self._recipe, {**self._fixed, **trial.params}, {})
        with tempfile.TemporaryDirectory() as folder:
            run, progress = Path(folder) / "run", {"logging.progress": "quiet"}
            config = call.config.replace_options(progress)
            surestep.Trainer(call.task(), config, run=run, callbacks=[report]).fit()
        if not report.is_pruned:
            self._known[values] = report.values
        return report


def search(settings: StudySettings, trials: Trials) -> tuple[float, int, int]:
    """Search once; return the lowest loss, and the counts of evaluations and pruned trials."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = record_settings(Path(folder), settings)
        storage = optuna.storages.InMemoryStorage()
        study = SearchStudy(Path(folder), recorded, storage, create=True)
        reports, losses = [], []
        while (trial := study.claim_trial()) is not None:
            if study.answer(trial):
                continue
            report = trials.run(study, trial)
            reports.append(report)
            if report.is_pruned:
                study.prune(trial, "pruned")
            else:
                losses.append(min(report.values))
                study.finish(trial, [losses[-1]])
    evaluations = sum(len(report.values) for report in reports)
    return min(losses), evaluations, len(reports) - len(losses)


def measure(task: str, seed: int, trials: int, known: set[str]) -> Iterable[Outcome]:
    """Search a task with each pruner that has no outcome yet."""
    recipe = load_file(find(small_tasks.__file__))
    fixed = {"task.name": task, "seed": seed}
    options = SearchOptions(trials=trials, space=SPACE, objectives=(f"{METRIC}:min",))
    settings = make_settings(call_recipe(recipe, fixed, {}), options, None)
    trained = Trials(recipe, {"validation.metric": METRIC, **fixed})
    for pruner in PRUNERS:
        if pruner not in known:
            own = replace(settings, pruner=pruner)
            yield Outcome(task, seed, trials, pruner, *search(own, trained))


def read(path: Path) -> list[Outcome]:
    """Read the lines of the results file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Outcome(**json.loads(line)) for line in lines]


def print_table(outcomes: list[Outcome]) -> None:
    """Print a line for each pruner, and the one that the rule chooses."""
    plain = {(one.task, one.seed): one for one in outcomes if one.pruner == "none"}
    print("| pruner | saved, mean | loss, median | loss, worst | worst search | pruned | allowed |")
    print("|---|---|---|---|---|---|---|")
    saved, allowed = {}, []
    for pruner in PRUNERS:
        found = [one for one in outcomes if one.pruner == pruner]
        pairs = [(one, plain[one.task, one.seed]) for one in found]
        saved[pruner] = statistics.mean(1 - a.evaluations / b.evaluations for a, b in pairs)
        ratios = [a.loss / b.loss for a, b in pairs]
        worst = max(pairs, key=lambda pair: pair[0].loss / pair[1].loss)[0]
        is_allowed = max(ratios) <= MOST
        allowed += [pruner] if is_allowed else []
        print(
            f"| `{pruner}` | {saved[pruner]:.0%} | {statistics.median(ratios):.3f} times "
            f"| {max(ratios):.3f} times | {worst.task}, seed {worst.seed} "
            f"| {statistics.mean(one.pruned for one in found):.1f} "
            f"| {'yes' if is_allowed else 'no'} |"
        )
    print(f"\nThe largest saving of those that are allowed: {max(allowed, key=saved.__getitem__)}")


def parse(words: Sequence[str] | None) -> tuple[argparse.Namespace, list[Outcome]]:
    """Return what is asked for, and the results so far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("pruners.jsonl"))
    parser.add_argument("tasks", nargs="*", help="some of them; all if there is none")
    given = parser.parse_args(words)
    for name in ("seeds", "trials"):
        if (count := getattr(given, name)) < 1:
            parser.error(f"--{name} {count}: pass 1 or more")
    given.tasks = given.tasks or small_tasks.NAMES
    if unknown := sorted({*given.tasks} - {*small_tasks.NAMES}):
        parser.error(f"no task is named {unknown[0]}. Known: {', '.join(small_tasks.NAMES)}")
    try:
        outcomes = read(given.results)
    except (TypeError, ValueError):
        parser.error(f"{given.results} has no results of this version: pass another --results")
    if others := sorted({one.trials for one in outcomes} - {given.trials}):
        parser.error(
            f"{given.results} has searches of {others[0]} trials, not of {given.trials}: pass "
            f"--trials {others[0]} to continue them, or another --results"
        )
    return given, outcomes


def main(words: Sequence[str] | None = None) -> None:
    """Search each task with each seed and pruner, and print the table.

    Args:
        words: of the command.
    """
    given, outcomes = parse(words)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    gc.freeze()  # each run collects garbage, for which all of the libraries' objects are searched
    for seed in range(given.seeds):
        for task in given.tasks:
            known = {one.pruner for one in outcomes if (one.task, one.seed) == (task, seed)}
            for outcome in measure(task, seed, given.trials, known):
                outcomes.append(outcome)
                with given.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
    asked = [one for one in outcomes if one.task in given.tasks and one.seed < given.seeds]
    print_table(asked)


if __name__ == "__main__":
    main()
