"""Measure what a search saves by pruning, and what its sampler gains over random values.

    python -m benchmarks.search [--seeds N] [--trials N] [--epochs N] [--folder FOLDER]

Searches the recipe `digits` with two workers, several times with different seeds: with the default
sampler and three pruners, with it and no pruner, and with random values and no pruner.
Then it gives the evaluations of the trials that were not pruned to several pruners, and reports
what each would have saved and lost on these trials. The results are not times, so other load on
the machine does not change them. The same command continues the studies in the folder.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import optuna

import surestep
from benchmarks.intervals import difference, ratio
from surestep.tuning.samplers import make_pruner

METHODS = (
    *(("tpe", "percentile:25"), ("tpe", "hyperband"), ("tpe", "median")),
    *(("tpe", "none"), ("random", "none")),
)
PRUNERS = ("percentile:25", "median", "median:warmup=0", "percentile:60", "hyperband", "halving")
SPACE = {
    "optim.lr": "log(1e-4, 1)",
    "optim.weight_decay": "log(1e-4, 1)",
    "schedule.name": ["cosine", "linear", "constant"],
    "task.dropout": "uniform(0, 0.7)",
    "task.width": "logint(4, 24)",
}


@dataclass(frozen=True)
class Outcome:
    """What one search found.

    Attributes:
        loss: the lowest validation loss.
        epochs: that all trials trained together.
        curves: the validation loss after each epoch, of each trial.
    """

    loss: float
    epochs: int
    curves: tuple[tuple[float, ...], ...]


def search(method: tuple[str, str], seed: int, folder: Path, trials: int, epochs: int) -> Outcome:
    """Search once, or read the search that is in the folder."""
    sampler, pruner = method
    result = surestep.search(
        "digits",
        SPACE,
        trials=trials,
        study=folder / f"{sampler}-{pruner}-{seed}",
        options={"epochs": epochs, "seed": seed, "validation.every": "1 epoch"},
        objectives="val/loss:min",
        sampler=sampler,
        pruner=pruner,
        workers=2,
        threads=1,
        keep_checkpoints="best",
    )
    assert result.best is not None
    curves = tuple(tuple(row.intermediate.values()) for row in result.trials)
    return Outcome(result.best.values["val/loss"], sum(map(len, curves)), curves)


def stop_after(outcome: Outcome, epochs: int) -> Outcome:
    """Return what a search had found when its trials had trained for so many epochs."""
    left: list[tuple[float, ...]] = []
    for curve in outcome.curves:
        curve = curve[: epochs - sum(map(len, left))]
        if curve:
            left.append(curve)
    return Outcome(min(map(min, left)), epochs, tuple(left))


def replay(outcome: Outcome, pruner: str) -> Outcome:
    """Return what a search would have found that prunes the same trials, one after the other."""
    made = make_pruner(pruner, max(map(len, outcome.curves)))
    study = optuna.create_study(study_name="replay", pruner=made)
    left = []
    for curve in outcome.curves:
        trial = study.ask()
        for epoch, loss in enumerate(curve, 1):
            trial.report(loss, epoch)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                left.append(curve[:epoch])
                break
        else:
            study.tell(trial, min(curve))
            left.append(curve)
    return Outcome(study.best_value, sum(map(len, left)), tuple(left))


def print_replays(outcomes: dict[tuple[str, str], list[Outcome]]) -> None:
    """Print what each pruner saves and loses on the trials that were not pruned."""
    print("\n| trials by | pruner | saved | loss x | same best trial |")
    print("|---|---|---|---|---|")
    for (sampler, pruner), found in outcomes.items():
        for name in PRUNERS if pruner == "none" else ():
            pruned = [replay(outcome, name) for outcome in found]
            pairs = list(zip(pruned, found, strict=True))
            saved = median(1 - ours.epochs / theirs.epochs for ours, theirs in pairs)
            loss = ratio([one.loss for one in pruned], [one.loss for one in found])
            same = sum(ours.loss == theirs.loss for ours, theirs in pairs)
            print(
                f"| {sampler} | {name} | {saved:.0%} | {loss.middle:.3f} | {same} of {len(found)} |"
            )


def print_table(outcomes: dict[tuple[str, str], list[Outcome]], whole: int) -> None:
    """Print the medians of each method, and each pair of methods compared seed by seed."""
    print("| sampler | pruner | lowest val/loss | from, to | epochs | saved |")
    print("|---|---|---|---|---|---|")
    for (sampler, pruner), found in outcomes.items():
        losses, epochs = [one.loss for one in found], median(one.epochs for one in found)
        print(
            f"| {sampler} | {pruner} | {median(losses):.4f} | {min(losses):.4f}, {max(losses):.4f} "
            f"| {epochs:.0f} of {whole} | {1 - epochs / whole:.0%} |"
        )
    full = outcomes["tpe", "none"]
    for pruner in ("percentile:25", "hyperband", "median"):
        pruned = outcomes["tpe", pruner]
        compare(f"with {pruner} against no pruner", pruned, full)
        same = [stop_after(theirs, ours.epochs) for ours, theirs in zip(pruned, full, strict=True)]
        compare(f"with {pruner} against no pruner, after as many epochs", pruned, same)
    compare("tpe against random", full, outcomes["random", "none"])


def compare(title: str, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> None:
    """Print the ratio of the losses of the same seed."""
    a, b = [one.loss for one in ours], [one.loss for one in theirs]
    found, gap = ratio(a, b), difference(a, b)
    print(
        f"{title}: loss x {found.middle:.3f} (95% {found.low:.3f} to {found.high:.3f}), "
        f"{gap.middle:+.4f}; lower for {sum(x < y for x, y in zip(a, b, strict=True))} of {len(a)} "
        "seeds"
    )


def main() -> None:
    """Search with each method and seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--folder", type=Path, default=None, help="default: a temporary one")
    arguments = parser.parse_args()
    outcomes: dict[tuple[str, str], list[Outcome]] = {method: [] for method in METHODS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for seed in range(arguments.seeds):
            for method, found in outcomes.items():
                found.append(search(method, seed, folder, arguments.trials, arguments.epochs))
    print_table(outcomes, arguments.trials * arguments.epochs)
    print_replays(outcomes)


if __name__ == "__main__":
    main()
