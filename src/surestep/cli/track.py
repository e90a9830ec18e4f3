"""`surestep track replay`."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from surestep.base.errors import ConfigError, RunError, SurestepError, suggest_names
from surestep.base.paths import require_local_path
from surestep.base.secrets import describe_error
from surestep.base.text import print_escaped
from surestep.cli.load_run import AllowRecipe, load_run_recipe, parse_allowed
from surestep.cli.main import run_subcommand
from surestep.cli.parse import command
from surestep.config.groups import tracker_names
from surestep.record.lock import is_locked
from surestep.record.run import Run

if TYPE_CHECKING:  # wrong arguments are rejected without torch
    from torch import nn

_COMMANDS = {"replay": "replay RUN --to TRACKER: send what a run recorded and the tracker lacks"}


@command("track replay")
def replay(
    folder: Annotated[str, tyro.conf.arg(metavar="RUN")],
    /,
    *,
    to: str,
    all: bool = False,
    allow: AllowRecipe = None,
) -> int:
    """Send what a run recorded to a tracker, from where the last delivery ended.

    Args:
        folder: Run folder.
        to: Name of the tracker, such as tensorboard.
        all: Send everything again.
        allow: recipe: run the recipe although its file has changed; recipe-inside: run one that
            is in a run folder, a mirror or a study.
    """
    if to not in tracker_names():
        known = f"Known: {', '.join(tracker_names())}."
        meant = suggest_names(to, tracker_names())
        raise ConfigError(
            f"--to {to}: there is no such tracker. {meant}{'' if meant == known else f' {known}'}"
        )
    path = Run(require_local_path(folder)).path
    if is_locked(path):
        raise RunError(f"{path} is running, and sends its records itself. Wait until it ends.")
    from surestep.tracking.follower import Delivery
    from surestep.tracking.registry import tracker_class

    allowed, load_model = parse_allowed(allow), None
    if Run(path).config["recipe"]:
        load_model = partial(_load_model, Run(path), allowed)
    delivery = Delivery(path, tracker_class(to)(), from_start=all, load_model=load_model)
    before = delivery.offset
    try:
        delivery.deliver()
    except SurestepError:
        raise
    except Exception as error:  # whatever the tracker's library raises
        where = f"at byte {delivery.offset:,} of {path / 'events.jsonl'}"
        raise RunError(f"{to} failed {where}: {describe_error(error)}.") from error
    finally:
        delivery.close()
    sent = delivery.offset - before
    print_escaped(f"{to} got {sent:,} bytes of events." if sent else f"{to} has everything.")
    return 0


def _load_model(run: Run, allow: Collection[str]) -> "nn.Module":
    """Return the model that the recipe of a run builds, with the weights of its best checkpoint."""
    call = load_run_recipe(run, allow)
    from surestep.trainer.evaluator import load_checkpoint_model
    from surestep.trainer.planning import plan_task

    config = call.config.single_process().replace_options({"device": "cpu", "precision": "fp32"})
    planned = plan_task(replace(call, config=config).task(), config)
    return load_checkpoint_model(run, planned, "best")[0].eval()


def run(words: list[str]) -> int:
    """Run one of the commands."""
    return run_subcommand("track", _COMMANDS, {"replay": replay}, words)
