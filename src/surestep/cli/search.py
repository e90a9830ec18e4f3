"""`surestep search RECIPE` and `surestep search show STUDY`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from surestep.base.errors import ConfigError
from surestep.base.exit_codes import DONE, FAILED, INTERRUPTED, STOPPED
from surestep.base.locations import flag
from surestep.base.paths import require_local_path
from surestep.base.text import format_count, one_line, print_escaped, print_json
from surestep.cli import output as show
from surestep.cli.config_file import read_config_file, read_points
from surestep.cli.notify import NotifiedCommand, choose_command
from surestep.cli.options import CommandOptions, read_command_line
from surestep.cli.parse import command
from surestep.cli.resumed_search import expand_resume, restore_search
from surestep.cli.stop import handle_late_signals
from surestep.engine.distributed.stop_signals import CTRL_C, check_stop
from surestep.engine.step.gc import import_without_collecting
from surestep.record.io import dumps

if TYPE_CHECKING:  # optuna, and torch with the recipe, are imported once the command is checked
    from surestep.tuning.options import SearchOptions
    from surestep.tuning.search import SearchResult
    from surestep.tuning.study import SearchStudy

_ENDED = ("finished", "pruned", "failed")
_EXIT_CODES = {"": DONE, "timeout": DONE, CTRL_C: INTERRUPTED}


@dataclass(frozen=True)
class Options(CommandOptions):
    """Search the options of a recipe: train it many times, each with other values.

    Options of the recipe are the same for all trials. `surestep search show STUDY` shows a study.

    Attributes:
        trials: Total number of trials, over all workers and all runs of this command. The default
            with --sampler grid is the whole grid.
        space: TOML file of the values that each option may have, such as
            optim.lr = "log(1e-5, 1e-2)". The default is the recipe's `space`.
        enqueue: TOML or JSON file of points for the first trials, each under [[points]]; the
            sampler chooses the values that a point leaves out. Trial 0 has the recipe's own
            values, if they are in the space.
        from_: Folder of another study with the same objectives, whose trials the sampler knows.
        study: Folder of the study; the default is searches/RECIPE-TIME. The same command again
            continues it; at the same time in another shell it is one more worker.
        resume: Folder of a study to continue with its own recipe and options.
        metric: What to optimize, such as val/accuracy; the default is validation.metric.
        mode: Whether less or more of --metric is better.
        objective: One or more objectives, such as val/accuracy:max seconds:min: metrics, seconds,
            parameters or peak_memory. The default direction is min for the last three, and
            validation.mode for a metric.
        where: What a trial has to satisfy so that it can be the best, such as
            "peak_memory < 8GB" or "val/accuracy >= 0.9", on what a trial measured.
        sampler: How values are chosen. One of tpe, random, grid, qmc, cmaes, gp.
        pruner: How trials end early. One of median, percentile, halving, hyperband, patient,
            wilcoxon, none. It may have options, such as percentile:25,warmup=2. The default is
            percentile:25: it prunes trials that are not among the best 25 percent, and nothing in
            the first quarter of the evaluations of a trial.
        storage: URL of a database for the trials; the default is a file in the study folder.
        workers: How many trials run at the same time.
        nproc: Number of processes that train each trial.
        threads: Threads of each process; the default divides the cores by workers x nproc.
        timeout: Save and stop after this time, such as 2h; the same command continues.
        trial_timeout: Time after which a trial fails, such as 30m, whatever it does.
        step_timeout: Time without a training step after which a trial fails; its start,
            evaluations and checkpoints count too.
        grace: Seconds without a heartbeat after which another worker resumes a trial.
        keep_checkpoints: best: delete the checkpoints of every trial that is not the best; all:
            keep them.
        confirm: Train the N best trials again with other seeds, and choose the best mean.
        confirm_seeds: Number of other seeds for each trial of --confirm.
        json: Print the results as JSON.
        notify: Shell command to run at the end; none: ignore that of your settings.
    """

    trials: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    space: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    enqueue: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    from_: Annotated[str | None, tyro.conf.arg(name="from", metavar="STUDY")] = None
    study: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    resume: Annotated[str | None, tyro.conf.arg(metavar="STUDY")] = None
    metric: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    mode: Literal["min", "max"] | None = None
    objective: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME:MODE")] = ()
    where: Annotated[tuple[str, ...], tyro.conf.arg(metavar="CONDITION")] = ()
    sampler: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    pruner: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    storage: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    workers: Annotated[int, tyro.conf.arg(metavar="N")] = 1
    nproc: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    threads: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    timeout: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    trial_timeout: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    step_timeout: Annotated[str | None, tyro.conf.arg(metavar="TIME")] = None
    grace: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    keep_checkpoints: Literal["all", "best"] = "all"
    confirm: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    confirm_seeds: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    json: bool = False
    notify: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None
    instead: ClassVar[Mapping[str, str]] = {
        "run": "A search makes its run folders itself: use --study FOLDER."
    }
    examples: ClassVar[Mapping[str, int]] = {"trials": 50}

    def check(self) -> None:
        """Check that the objectives can be combined."""
        if self.objective and (self.metric or self.mode):
            raise ConfigError(
                "--metric and --mode set a single objective, and --objective sets all of them. "
                "Write --objective val/accuracy:max."
            )
        if self.mode and not self.metric:
            raise ConfigError(
                f"--mode {self.mode} needs the metric that it is for: --metric val/accuracy."
            )

    def as_search_options(self) -> SearchOptions:
        """Return the options of the search.

        Raises:
            ConfigError: the space cannot be read, or a value is invalid.
        """
        from surestep.tuning.options import SearchOptions, parse_timeout

        space = None if self.space is None else read_config_file(Path(self.space), "--space")
        objectives = self.objective
        if self.metric is not None:
            objectives = (f"{self.metric}:{self.mode}" if self.mode else self.metric,)
        same = {field.name for field in fields(SearchOptions)} & set(vars(self))
        given = {name: getattr(self, name) for name in same - {"space", "study", "enqueue"}}
        return SearchOptions(
            **given,
            study=None if self.study is None else require_local_path(self.study),
            space=None if space is None else space.options,
            locations={} if space is None else space.places,
            enqueue=() if self.enqueue is None else read_points(Path(self.enqueue)),
            enqueue_place=str(self.enqueue),
            warm_start=None if self.from_ is None else require_local_path(self.from_),
            objectives=objectives,
            timeout_s=parse_timeout(self.timeout),
            trial_timeout_s=parse_timeout(self.trial_timeout, "trial_timeout"),
            step_timeout_s=parse_timeout(self.step_timeout, "step_timeout"),
            grace_s=self.grace,
        )


def run(words: list[str]) -> int:
    """Search, or show a study."""
    if words[:1] == ["show"]:
        return show_study(words[1:])
    _reject_study(words)
    expanded, resumed = expand_resume(words)
    call, own = read_command_line("search", expanded, Options)
    options = own.as_search_options()
    if resumed is not None:
        call, options = restore_search(call, options, resumed)
    notified = NotifiedCommand("search", choose_command(own.notify), own.study or "")

    def search() -> int:
        # With --json, stdout has only the results; a recipe may print.
        with redirect_stdout(sys.stderr) if own.json else nullcontext():
            with import_without_collecting():
                from surestep.tuning.search import run_search

            check_stop()
            result = run_search(call, options)
        problems = _find_problems(result)
        notified.folder = result.folder
        notified.describe = partial(_describe_result, result, problems)
        with handle_late_signals():
            if own.json:
                print_json(dumps(_as_json(result), indent=1))
            else:
                _print_result(result, words, expanded[0])
        for problem in problems:
            print_escaped(problem, sys.stderr)
        return FAILED if problems else _EXIT_CODES.get(result.stopped, STOPPED)

    return notified.run(search)


def _find_problems(result: SearchResult) -> list[str]:
    """Return why a search has failed; [] if it has not, or was stopped."""
    if result.stopped not in ("", "timeout"):
        return []
    problems = []
    finished = [row for row in result.trials if row.state == "finished"]
    if finished and not any(row.is_feasible for row in finished):
        problems.append(
            f"No trial satisfies {' and '.join(result.study.settings.where)}, so there is no best "
            "one. Search other values, or relax --where in a new study."
        )
    if failed := [row for row in result.trials if row.state == "failed"]:
        problems.append(
            f"{len(failed)} of {format_count(len(result.trials), 'trial')} failed, so the exit "
            f"code is {FAILED}. Trial {failed[0].number}: {one_line(failed[0].reason)}"
        )
    return problems


def _describe_result(result: SearchResult, problems: list[str]) -> dict[str, object]:
    """Return the facts of a search that has ended, for --notify."""
    values = {} if result.winner is None else result.winner.values
    metric, best = next(iter(values.items()), (None, None))
    return {
        **({"STATUS": "stopped"} if result.stopped else {}),
        "REASON": " ".join(problems) or result.stopped,
        "TRIALS": sum(row.state in _ENDED for row in result.trials),
        **{"METRIC": metric, "BEST": best},
    }


def _reject_study(words: list[str]) -> None:
    """Reject `search STUDY` and `search STUDY show`, which are meant for `search show STUDY`.

    Raises:
        ConfigError: what to type instead.
    """
    first = words[0] if words else "-"
    if (Path(first) / "study.json").exists():
        raise ConfigError(
            f"{first} is a study. Type surestep search show {shlex.quote(first)}, or surestep "
            f"search --resume {shlex.quote(first)} to continue it."
        )
    if words[1:2] == ["show"]:
        raise ConfigError(
            f"{first} comes before show. Type surestep search show STUDY, with the folder of a "
            "study."
        )


def _as_json(result: SearchResult) -> dict[str, object]:
    """Return what is printed with --json: the report, and what the search chose."""
    from surestep.tuning.report import describe_study

    return {
        **describe_study(result.study),
        "folder": str(result.folder),
        "stopped": result.stopped,
        "winner": None if result.winner is None else asdict(result.winner),
        "config": None if result.config is None else str(result.config),
    }


def _print_result(result: SearchResult, words: list[str], recipe: str) -> None:
    """Print the table of the trials, the best of them, and what to type next.

    Args:
        result: of the search.
        words: as they were typed.
        recipe: as it is typed.
    """
    from surestep.tuning.finish import describe_winner
    from surestep.tuning.worker import best_rows

    study = result.study
    winners = _print_table(study)
    if result.winner is not None:
        candidates = len(best_rows(list(result.trials), study))
        for line in describe_winner(study, result.winner, candidates):
            print_escaped(line)
    elif study.settings.is_multi_objective and winners:
        _print_front(study, winners, recipe)
    if result.report is not None:
        print_escaped(f"Report: {result.report}")
    if result.stopped:
        typed = ["surestep", "search", *words]
        if not any(word.split("=")[0] in ("--study", "--resume") for word in words):
            typed += ["--study", str(result.folder)]
        print_escaped(f"Stopped by {result.stopped}. Resume with: {shlex.join(typed)}")
    elif result.config is not None:
        print_escaped(
            f"Next: surestep train {shlex.quote(recipe)} --config {shlex.quote(str(result.config))}"
        )


def _print_front(study: SearchStudy, winners: list[int], recipe: str) -> None:
    """Print the trials on the Pareto front, and how to train one of them."""
    numbers = ", ".join(map(str, winners))
    print_escaped(
        f"Pareto front (*): {'trial' if len(winners) == 1 else 'trials'} {numbers}. With several "
        "objectives there is no single best trial, and no best.toml."
    )
    row = next(row for row in study.rows() if row.number == winners[0])
    options = {**study.settings.fixed, **row.options}
    values = [word for name, value in options.items() for word in _as_words(name, value)]
    print_escaped(
        f"To train trial {row.number}: {shlex.join(['surestep', 'train', recipe, *values])}"
    )


def _as_words(name: str, value: object) -> list[str]:
    """Return an option as it is typed."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [flag(name), *map(str, several)]


def _print_table(study: SearchStudy) -> list[int]:
    """Print the table of the trials; return the numbers of those with a star."""
    from surestep.tuning.report import find_winners
    from surestep.tuning.table import tabulate_trials

    rows, settings = study.rows(), study.settings
    winners = find_winners(study, rows)
    constrained = [one.name for one in settings.constraints]
    columns, cells = tabulate_trials(
        rows, settings.objectives, settings.space, winners, constrained
    )
    if cells:
        show.print_table(str(study.folder), columns, cells)
    else:
        print_escaped(f"{study.folder} has no trials yet.")
    return winners


@command("search show")
def show_study(
    study: Annotated[str, tyro.conf.arg(metavar="STUDY")],
    /,
    *,
    storage: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None,
    html: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None,
    json: bool = False,
) -> int:
    """Show the trials of a study, also while it runs.

    Args:
        study: Folder of the study.
        storage: URL of the study's database, if it needs a password (passwords are not stored) or
            was typed on another machine.
        html: Write the report as a page to this file.
        json: Print the study as JSON.
    """
    from surestep.record.io import check_output
    from surestep.tuning.open import read_study
    from surestep.tuning.report import describe_study, write_report

    opened = read_study(require_local_path(study), storage)
    if html is not None:
        page = Path(html)
        check_output(page, (".html",), overwrite=True)
        write_report(opened, page, None)
    if json:
        print_json(dumps(describe_study(opened), indent=1))
    else:
        _print_table(opened)
    return 0
