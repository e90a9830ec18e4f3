"""What JSON that anybody may have written must be: a kind checks a value, and returns it.

A number that is not finite stands in JSON as its name, and is a number again behind its kind.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

Kind = Callable[[Any, str], Any]  # the value and what it is called; raises ValueError
MOST = 2**63
_NOTHING: Mapping[str, Kind] = {}


class NewerFormatError(ValueError):
    """It is of a format that a newer surestep wrote."""


def anything(value: Any, name: str) -> Any:
    """Take whatever it is."""
    return value


def text(value: Any, name: str) -> str:
    """Take text."""
    return str(_check(isinstance(value, str), value, name, "text"))


def boolean(value: Any, name: str) -> bool:
    """Take true or false."""
    return bool(_check(isinstance(value, bool), value, name, "true or false"))


def count(value: Any, name: str) -> int:
    """Take a whole number that is not negative."""
    return int(_check(type(value) is int and 0 <= value < MOST, value, name, "a count"))


def number(value: Any, name: str) -> float:
    """Take a number; one that is not finite by its name."""
    if value in ("nan", "inf", "-inf"):
        return float(value)
    whole = type(value) is int and abs(value) < 2**1023
    _check(whole or type(value) is float, value, name, "a number")
    found: float = value  # a whole one stays whole
    return found


def finite(value: Any, name: str) -> float:
    """Take a number that is finite."""
    if type(value) is float and math.isfinite(value):  # nearly all that there are
        return value
    found = number(value, name)
    _check(math.isfinite(found), value, name, "a finite number")
    return found


def positive(value: Any, name: str) -> float:
    """Take a number above zero."""
    found = number(value, name)
    _check(math.isfinite(found) and found > 0, value, name, "a number above zero")
    return found


def at_most(kind: Kind, most: float) -> Kind:
    """Take what is no larger than what a tensor of torch holds."""

    def take(value: Any, name: str) -> Any:
        found = kind(value, name)
        return _check(found <= most, found, name, f"at most {most:g}")

    return take


def numbers(value: Any, name: str) -> Any:
    """Take a number, or lists of them."""
    if isinstance(value, list):
        return [numbers(each, name) for each in value]
    return number(value, name)


def optional(kind: Kind) -> Kind:
    """Take null as well."""
    return lambda value, name: None if value is None else kind(value, name)


def one_of(*words: str) -> Kind:
    """Take one of some words."""
    return lambda value, name: _check(
        isinstance(value, str) and value in words, value, name, " or ".join(words)
    )


def list_of(kind: Kind) -> Kind:
    """Take a list."""

    def take(value: Any, name: str) -> list[Any]:
        _check(isinstance(value, list), value, name, "a list")
        try:
            return [kind(each, name) for each in value]
        except ValueError:  # so that only what is told of has its place put into words
            return [kind(each, f"{name}[{i}]") for i, each in enumerate(value)]

    return take


def mapping_of(kind: Kind) -> Kind:
    """Take an object whose names are anybody's."""

    def take(value: Any, name: str) -> dict[str, Any]:
        _check(isinstance(value, dict), value, name, "an object")
        return {key: kind(each, f"{name}.{format_value(key)}") for key, each in value.items()}

    return take


def exact_object(**kinds: Kind) -> Kind:
    """Take an object with these names, and no others."""

    def take(value: Any, name: str) -> dict[str, Any]:
        _check(isinstance(value, dict), value, name, "an object")
        lacks, more = sorted(kinds.keys() - value.keys()), sorted(value.keys() - kinds.keys())
        if lacks or more:
            raise ValueError(
                f"{name} lacks {', '.join(lacks) or 'nothing'} and has "
                f"{', '.join(map(format_value, more[:3])) or 'nothing'} besides"
            )
        return {key: kind(value[key], f"{name}.{key}") for key, kind in kinds.items()}

    return take


def open_object(must: Mapping[str, Kind], may: Mapping[str, Kind] = _NOTHING) -> Kind:
    """Take an object that has some names, may have others, and more that nobody here reads."""

    def take(value: Any, name: str) -> dict[str, Any]:
        _check(isinstance(value, dict), value, name, "an object")
        if lacks := sorted(must.keys() - value.keys()):
            raise ValueError(f"{name} lacks {', '.join(lacks)}")
        kinds = {**may, **must}
        return {
            key: kinds[key](each, f"{name}.{key}") if key in kinds else each
            for key, each in value.items()
        }

    return take


def pair(first: Kind, second: Kind) -> Kind:
    """Take a list of two."""

    def take(value: Any, name: str) -> list[Any]:
        _check(isinstance(value, list) and len(value) == 2, value, name, "a list of two")
        return [first(value[0], f"{name}[0]"), second(value[1], f"{name}[1]")]

    return take


def version(most: int) -> Kind:
    """Take the number of a format that is known here."""

    def take(value: Any, name: str) -> int:
        if (found := count(value, name)) > most:
            raise NewerFormatError(
                f"has format {found}, and this surestep reads up to {most}. Install a newer one: "
                "pip install -U surestep."
            )
        return found

    return take


def format_value(value: Any) -> str:
    """Show a value in a message, without its line breaks and cut where it is long."""
    found = repr(value[:100] if isinstance(value, (str, list)) else value)
    return found if len(found) <= 60 else f"{found[:60]}..."


def _check(holds: bool, value: Any, name: str, kind: str) -> Any:
    if not holds:
        raise ValueError(f"{name} is {format_value(value)}, which is not {kind}")
    return value
