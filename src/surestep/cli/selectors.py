"""The options --select, --ignore and --exclude, whose values are separated by commas."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError
from surestep.doctor.selection import find_unknown

_OF_RULES = ("--select", "--ignore")
_EXAMPLES = {"--select": "SS1,SS501", "--ignore": "SS501", "--exclude": "build/"}
_OPTIONS = tuple(_EXAMPLES)
# One value, so that a path may follow; given again, it adds to the others.
Selectors = Annotated[
    tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="RULE[,RULE...]")
]


def split_commas(given: Sequence[str]) -> list[str]:
    """Return values that are separated by commas."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def check_selectors(words: Sequence[str]) -> None:
    """Reject values without a name, and rules that are separated by spaces.

    Only the first of these rules would belong to the option.

    Raises:
        ConfigError: a value is empty, or a rule follows the value of --select or --ignore.
    """
    for index, word in enumerate(words):
        option, sign, value = word.partition("=")
        if option not in _OPTIONS:
            continue
        for text in [value] if sign else words[index + 1 : index + 2]:
            if not split_commas([text]):  # a variable of a shell that is not set
                raise ConfigError(
                    f"{option} {text!r} is empty. Give a value, such as {option} "
                    f"{_EXAMPLES[option]}, or leave {option} out."
                )
        if option not in _OF_RULES:
            continue
        given = [value] if value else list(words[index + 1 : index + 2])
        for other in words[index + (1 if value else 2) :]:
            if Path(other).exists() or any(map(find_unknown, split_commas([other]) or ["-"])):
                break
            given.append(other)
        if len(given) > 1:
            joined = ",".join(split_commas(given))
            raise ConfigError(f"Separate rules by commas: {option} {joined}")


def join_repeated(words: Sequence[str]) -> list[str]:
    """Return words in which each of these options is given once, with all its values."""
    others: list[str] = []
    values: dict[str, list[str]] = {}
    rest = iter(words)
    for word in rest:
        option, sign, value = word.partition("=")
        if option in _OPTIONS and (value := value if sign else next(rest, "")):
            values.setdefault(option, []).append(value)
        else:
            others.append(word)
    return [*others, *(part for name in values for part in (name, ",".join(values[name])))]
