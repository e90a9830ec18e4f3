"""The `--help` page of a recipe: the options that apply, the common ones first."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap
from typing import NamedTuple

from surestep.cli.relevant_options import applies
from surestep.cli.spelling import values_in
from surestep.engine.distributed.launcher_env import NPROC
from surestep.recipes.find import COMPUTED, Outline, Parameter

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
COMMON = (
    *("epochs", "max_steps", "batch_size", "micro_batch_size", "optim.name", "optim.lr"),
    *("optim.weight_decay", "schedule.name", "schedule.warmup", "max_grad_norm", "precision"),
    "seed",
)
# The Plan's defaults of the options that decide which other options apply.
DEFAULTS: Mapping[str, str] = {
    "optim.name": "adamw",
    "schedule.name": "constant",
    "average.kind": "none",
    "early_stop.patience": "None",
    "compile": "off",
    "on_nonfinite": "raise",
    "on_spike": "warn",
    "parallel.ranks": "1",
}
_GROUPS = {
    "": "The run",
    "optim": "Optimizer",
    "schedule": "Learning-rate schedule",
    "scaler": "Loss scaling",
    "data": "Data",
    "validation": "Validation",
    "early_stop": "Early stopping",
    "average": "Averaged weights",
    "checkpoint": "Checkpoints",
    "parallel": "Several processes",
    "logging": "Logging",
}
_COLUMN, _WIDEST = 30, 100


class Shown(NamedTuple):
    """An option on the help page.

    Attributes:
        call: "--epochs FLOAT".
        text: its description, with its value.
    """

    call: str
    text: str


def asks_for_help(words: Iterable[str]) -> bool:
    """Return whether a command line has --help or --help-all."""
    return bool({*HELP, HELP_ALL} & set(words))


def chosen_by(words: list[str], outline: Outline) -> dict[str, str]:
    """Return the options that decide which others apply: as typed, else the recipe's."""
    typed = values_in(words)
    several = NPROC.removeprefix("--") in typed or int(os.environ.get("WORLD_SIZE") or "1") > 1
    of_processes = {"parallel.ranks": "several"} if several else {}
    set_by_recipe = {name: str(value) for name, value in outline.options.items()}
    return {**DEFAULTS, **set_by_recipe, **typed, **of_processes}


def help_text(
    usage: str,
    outline: Outline,
    own: Iterable[Shown],
    of_config: Mapping[str, Shown],
    chosen: Mapping[str, str] | None,
) -> str:
    """Return the help page.

    Args:
        usage: "surestep train digits".
        outline: of the recipe.
        own: options of the command itself.
        of_config: options of the Config by full name.
        chosen: values of the options that decide which others apply; None shows all options.
    """
    shown = [name for name in of_config if chosen is None or applies(name, chosen.get)]
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines = [f"usage: {usage} [options]", ""]
    if outline.doc:
        lines += [*outline.doc.splitlines(), ""]
    sections = [("Common options", [of_config[name] for name in COMMON if name in shown])]
    if outline.parameters:
        sections.append(("Parameters of the recipe", list(_of_task(outline.parameters))))
    sections.append(
        (
            "Options of this command",
            [*own, Shown("-h, --help", "Show the options that apply here.")],
        )
    )
    for group, title in _GROUPS.items():
        names = [n for n in shown if n.rpartition(".")[0] == group and n not in COMMON]
        sections.append((title, [of_config[name] for name in names]))
    for title, entries in sections:
        if entries:
            lines += [f"{title}:", *(line for item in entries for line in _lines(item, width)), ""]
    hidden = len(of_config) - len(shown)
    if hidden:
        lines.append(
            f"{hidden} more options belong to features that are not used: {HELP_ALL} shows them."
        )
    return "\n".join(lines).rstrip()


def _of_task(parameters: Mapping[str, Parameter]) -> Iterator[Shown]:
    for name, parameter in parameters.items():
        default = parameter.default
        hint = "(required)" if default is None else f"({default}: the recipe's default)"
        yield Shown(f"--task.{name.replace('_', '-')} VALUE", f"{parameter.about} {hint}".strip())


def _lines(shown: Shown, width: int) -> Iterator[str]:
    text = wrap(shown.text, max(width - _COLUMN, 30), break_long_words=False) or [""]
    first = f"  {shown.call}"
    if len(first) <= _COLUMN - 2:
        yield f"{first:<{_COLUMN}}{text.pop(0)}".rstrip()
    else:
        yield first
    for line in text:
        yield " " * _COLUMN + line


def set_by(recipe: str, outline: Outline) -> dict[str, str]:
    """Describe the options that a recipe's config sets, by full name."""
    return {
        name: f"({'' if value == COMPUTED else f'{value}: '}set by recipe {recipe})"
        for name, value in outline.options.items()
    }
