"""The `--help` page of a recipe: the options that apply, the common ones first."""

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from textwrap import wrap
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from surestep.base.errors import ConfigError
from surestep.base.locations import flag
from surestep.config.config import Choice, has_requirements, iter_options
from surestep.config.not_set import NotSet
from surestep.config.optim import OF_ALL
from surestep.engine.distributed.launcher_env import NPROC
from surestep.engine.optim.registry import own_option_names
from surestep.engine.schedule.registry import schedule_info
from surestep.recipes.find import COMPUTED, Outline, Parameter, parse_attributes

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
# torchrun reads --run, anywhere on the line, as an abbreviation of its own --run-path.
ALIASES = {"run_folder": "run", "track": "logging.trackers"}
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
    "doctor": "Rules that check the run",
    "report": "Report",
}
_CONFIG_FILE = "TOML file, or a config.json of a run; typed options override it."
_COLUMN, _WIDEST, _LONGEST_METAVAR = 30, 100, 60
Entry = tuple[str, str]  # ("--epochs FLOAT", its description)


def applies(option: str, chosen: Choice) -> bool:
    """Return whether an option means anything with what was chosen."""
    group, _, own = option.rpartition(".")
    if group == "optim" and own not in OF_ALL:
        return own in _options(own_option_names, chosen("optim.name"))
    if group == "schedule" and own != "name":
        return own in _options(lambda name: schedule_info(name).takes, chosen("schedule.name"))
    return has_requirements(option, chosen)


def _options(names: Callable[[str], Iterable[str]], name: Any) -> Iterable[str]:
    """Return the options of an optimizer or a schedule; none if there is no working one."""
    try:
        return names(str(name))
    except (KeyError, ConfigError):
        return ()


def asks_for_help(words: Collection[str]) -> bool:
    """Return whether a command line has --help or --help-all."""
    return not {*HELP, HELP_ALL}.isdisjoint(words)


def help_page(
    usage: str,
    words: list[str],
    outline: Outline,
    own: type[Any],
    typed: Mapping[str, Any],
) -> str:
    """Return the options that apply; with --help-all every option.

    `own` is the dataclass of the command's own options, `typed` has those of the Config and the
    recipe on the command line.
    """
    shows_all = HELP_ALL in words
    hints = {
        name: f"({'' if value == COMPUTED else f'{value}: '}set by recipe {outline.name})"
        for name, value in outline.options.items()
    }
    of_config = {name: _of_config(name, field, hints.get(name)) for name, field in iter_options()}
    chosen = {**DEFAULTS, **{name: str(value) for name, value in outline.options.items()}, **typed}
    if NPROC in " ".join(words) or int(os.environ.get("WORLD_SIZE") or "1") > 1:
        chosen["parallel.ranks"] = "several"
    shown = [name for name in of_config if shows_all or applies(name, chosen.get)]
    sections = [
        ("Common options", [of_config[name] for name in COMMON if name in shown]),
        ("Parameters of the recipe", list(_of_recipe(outline.parameters or {}))),
        ("Options of this command", list(_of_command(own))),
    ]
    for group, title in _GROUPS.items():
        names = [n for n in shown if n.rpartition(".")[0] == group and n not in COMMON]
        sections.append((title, [of_config[name] for name in names]))
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    lines = [f"usage: {usage} [options]", ""]
    lines += [*outline.doc.splitlines(), ""] if outline.doc else []
    for title, entries in sections:
        if entries:
            lines += [
                f"{title}:",
                *(line for entry in entries for line in _lines(entry, width)),
                "",
            ]
    if len(shown) < len(of_config):
        hidden = len(of_config) - len(shown)
        lines.append(
            f"{hidden} more options belong to features that are not used: {HELP_ALL} shows them."
        )
    return "\n".join(lines).rstrip()


def _of_config(name: str, field: Any, hint: str | None) -> Entry:
    typed = [name, *(alias for alias, meant in ALIASES.items() if meant == name)]
    spelled = ", ".join(map(flag, typed))
    metavar, text = _metavar(field.annotation), f"{field.description} {hint or ''}".strip()
    if len(metavar) > _LONGEST_METAVAR:
        metavar, text = "NAME", f"{text} One of {metavar.replace('|', ', ')}."
    return f"{spelled} {metavar}", text


def _of_recipe(parameters: Mapping[str, Parameter]) -> Iterator[Entry]:
    for name, parameter in parameters.items():
        default = parameter.default
        hint = "(required)" if default is None else f"({default}: the recipe's default)"
        yield f"{flag(f'task.{name}')} VALUE", f"{parameter.about} {hint}".strip()


def _of_command(own: type[Any]) -> Iterator[Entry]:
    about = {"config": _CONFIG_FILE, **parse_attributes(own.__doc__)}
    hints = get_type_hints(own, include_extras=True)
    for field in fields(own):
        kind = hints[field.name]
        metavar = _metavar(kind)
        if get_origin(kind) is Annotated:
            metavar = get_args(kind)[1].metavar or metavar
        metavar = {"True|False": "", "TEXT": "FILE"}.get(metavar, metavar)
        yield f"{flag(field.name.rstrip('_'))} {metavar}".strip(), about[field.name]
    yield "-h, --help", "Show the options that apply here."


def _lines(entry: Entry, width: int) -> Iterator[str]:
    call, text = f"  {entry[0]}", wrap(entry[1], max(width - _COLUMN, 30), break_long_words=False)
    if len(call) <= _COLUMN - 2 and text:
        call = f"{call:<{_COLUMN}}{text.pop(0)}"
    yield call
    for line in text:
        yield " " * _COLUMN + line


def _metavar(annotation: Any) -> str:
    """Return the type of an option as users think of it."""
    members = [member for member in list_members(annotation) if member not in (type(None), NotSet)]
    words = [
        member if isinstance(member, str) else _WORDS.get(member, "VALUE") for member in members
    ]
    return "|".join(dict.fromkeys(words)) if "VALUE" not in words else "VALUE"


_WORDS = {int: "INT", float: "FLOAT", str: "TEXT", bool: "True|False"}


def list_members(annotation: Any) -> list[Any]:
    """Return the types of an annotation, and the values of a Literal in it."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return list(inner)
    if origin is Annotated:
        return list_members(inner[0])
    if origin is tuple:
        several = Ellipsis in inner
        return [f"{_metavar(inner[0])} ..." if several else " ".join(["FLOAT"] * len(inner))]
    return [member for entry in inner for member in list_members(entry)] if inner else [annotation]
