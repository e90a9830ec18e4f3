"""Words of the command line that are spelled out before they are parsed."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

from surestep.base.errors import suggest_names
from surestep.base.written import flag
from surestep.config.choices import MAIN
from surestep.config.config import iter_options
from surestep.config.foreign_names import describe

# Options that a bare flag switches on, beside those that are true or false.
_BARE = {"compile": "True", "activation_checkpointing": "True", "resume": "auto"}


class Spelled(NamedTuple):
    """A command line whose every option is known.

    Attributes:
        words: without the options that there are not.
        faults: a sentence for each of those.
    """

    words: list[str]
    faults: list[str]


def spell_out(
    words: list[str],
    extras: Mapping[str, Any],
    aliases: Iterable[str],
    parameters: Iterable[str],
) -> Spelled:
    """Write flags, groups and short forms out: `--optim adamw --compile`.

    Args:
        words: of the command line, behind the recipe.
        extras: the command's own options, by name, as (type, default).
        aliases: other names of options, "--log-ranks".
        parameters: names of the recipe's own parameters.
    """
    fields = dict(iter_options())
    known = {*fields, *_names(extras), "config", "help", "help_all"}
    known |= {f"task.{each}" for each in parameters}
    known |= {each.lstrip("-").replace("-", "_") for each in aliases}
    on_or_off = {name for name, field in fields.items() if "bool" in str(field.annotation)}
    typed = values_in(words)
    spelled, faults, at = [], [], 0
    while at < len(words):
        word, values = words[at], _values(words, at)
        at += 1
        if not word.startswith("--") or word == "--":
            spelled.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if name.startswith("no_") and name[3:] in on_or_off:
            name, equals, value = name[3:], "=", "False"
        name = f"{name}.{MAIN[name]}" if name in MAIN else name
        bare = not equals and not values
        if bare and (name in on_or_off or name in _BARE):
            equals, value = "=", _BARE.get(name, "True")
        if name not in known:
            faults.append(_unknown(name, value if equals else " ".join(values), typed, known))
            at += 0 if equals else len(values)
            continue
        spelled.append(f"{flag(name)}={value}" if equals else flag(name))
    return Spelled(spelled, faults)


def _values(words: list[str], at: int) -> list[str]:
    """Return the words after an option, up to the next one."""
    found = []
    for word in words[at + 1 :]:
        if word.startswith("--"):
            break
        found.append(word)
    return found


def values_in(words: list[str]) -> dict[str, str]:
    """Return the options of a command line and their values, by name."""
    found = {}
    for at, word in enumerate(words):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            found[name.replace("-", "_")] = value if equals else " ".join(_values(words, at))
    return found


def _names(extras: Mapping[str, Any]) -> Iterable[str]:
    """Return the names by which a command's own options are typed."""
    for name, (kind, _) in extras.items():
        yield name.rstrip("_")
        for arg in get_args(kind)[1:]:
            aliases = getattr(arg, "aliases", None) or ()
            yield from (each.lstrip("-").replace("-", "_") for each in aliases)


def _unknown(name: str, value: str, typed: Mapping[str, str], known: Iterable[str]) -> str:
    """Say that there is no such option, and which one may be meant."""
    group, _, own = name.rpartition(".")
    meant = describe(own, value, typed, "cli", group)
    meant = meant or _near(name, [each.replace("_", "-") for each in known])
    return f"There is no option {flag(name)!r}. {meant}"


def _near(name: str, known: list[str]) -> str:
    """Say which options are spelled alike; within a group they are compared without its name."""
    group, _, own = name.replace("_", "-").rpartition(".")
    inner = [each.rpartition(".")[2] for each in known if each.rpartition(".")[0] == group]
    if group and inner:
        return suggest_names(own, inner, f"--{group}.")
    in_groups = [f"--{each}" for each in known if each.endswith(f".{own}")]
    if in_groups:
        return f"Did you mean {' or '.join(map(repr, in_groups))}?"
    return suggest_names(own, known, "--")
