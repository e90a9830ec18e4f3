"""`surestep track replay`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError, RunError, suggest_names
from surestep.base.paths import require_local_path
from surestep.base.text import print_escaped
from surestep.cli.load_run import AllowRecipe, load_run_recipe, parse_allowed
from surestep.cli.main import run_subcommand
from surestep.cli.parse import command
from surestep.config.groups import tracker_names
from surestep.record.lock import is_locked
from surestep.record.run import Run
from surestep.tracking.follower import describe_replay
from surestep.tracking.replay import list_recorded, replay_run
from surestep.tuning.settings import STUDY_FILE

if TYPE_CHECKING:  # wrong arguments are rejected without torch
    from torch import nn

    from surestep.recipes.load import RecipeCall
    from surestep.tracking.tracker import Tracker

_COMMANDS = {
    "replay": "replay RUN|STUDY --to TRACKER: send what was recorded and the tracker lacks"
}


@command("track replay")
def replay(
    folder: Annotated[str, tyro.conf.arg(metavar="RUN|STUDY")],
    /,
    *,
    to: str,
    all: bool = False,
    allow: AllowRecipe = None,
) -> int:
    """Send what a run recorded to a tracker, from where the last delivery ended.

    Args:
        folder: Run folder; or the folder of a search, for all its trials and its result.
        to: Name of the tracker, such as tensorboard, or that of a tracker of the recipe.
        all: Send everything again.
        allow: recipe: run the recipe although its file has changed; recipe-inside: run one that
            is in a run folder, a mirror or a study.
    """
    path, allowed = require_local_path(folder), parse_allowed(allow)
    is_study = (path / STUDY_FILE).exists()
    runs = sorted(file.parent for file in path.glob("*/*/config.json")) if is_study else [path]
    _check_name(to, runs)
    for run in map(Run, runs):
        if is_study and is_locked(run.path):
            print_escaped(f"{run.path} is running, and sends its records itself.")
            continue
        sent = _replay_run(run, to, allowed, from_start=all)
        where = f" of {run.path}" if is_study else ""
        what = f"{sent:,} bytes of events" if sent else "everything"
        print_escaped(f"{to} {'got' if sent else 'has'} {what}{where}.")
    if is_study:
        _send_result(path, to)
    return 0


def _check_name(to: str, runs: Sequence[Path]) -> None:
    """Check that a tracker has this name, or had it when one of the runs was tracked."""
    known = tuple(dict.fromkeys([*tracker_names(), *chain(*map(list_recorded, runs))]))
    if to not in known:
        names = f"Known: {', '.join(known)}."
        meant = suggest_names(to, known)
        raise ConfigError(
            f"--to {to}: there is no such tracker. {meant}{'' if meant == names else f' {names}'}"
        )


def _replay_run(run: Run, to: str, allowed: Collection[str], *, from_start: bool) -> int:
    """Send what a run recorded; return how many bytes of events that is."""
    from surestep.tracking.registry import tracker_class

    load = cache(partial(load_run_recipe, run, allowed))  # once, if at all
    if to in tracker_names():
        tracker: Tracker | None = tracker_class(to)()
    else:
        own = load().recipe.trackers if run.config["recipe"] else []
        tracker = next((tracker for tracker in own if tracker.name == to), None)
    if tracker is None:
        raise ConfigError(
            f"--to {to}: this is a tracker of the script that started {run.path}. "
            f"{describe_replay(run.path, to)}"
        )
    load_model = partial(_load_model, run, load) if run.config["recipe"] else None
    return replay_run(run.path, tracker, from_start=from_start, load_model=load_model)


def _send_result(study: Path, to: str) -> None:
    """Send the result of a search that has one."""
    from surestep.tracking.study import finish_study
    from surestep.tuning.finish import read_study_result

    result = read_study_result(study)
    if result is None or to not in tracker_names():
        return
    if failures := finish_study([to], result):
        raise RunError(failures[0])
    print_escaped(f"{to} has the result of {study}.")


def _load_model(run: Run, load: "Callable[[], RecipeCall]") -> "nn.Module":
    """Return the model that the recipe of a run builds, with the weights of its best checkpoint."""
    call = load()
    from surestep.trainer.evaluator import load_checkpoint_model
    from surestep.trainer.planning import plan_task

    config = call.config.single_process().replace_options({"device": "cpu", "precision": "fp32"})
    planned = plan_task(replace(call, config=config).task(), config)
    return load_checkpoint_model(run, planned, "best")[0].eval()


def run(words: list[str]) -> int:
    """Run one of the commands."""
    return run_subcommand("track", _COMMANDS, {"replay": replay}, words)
