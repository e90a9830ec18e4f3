"""Choose rules by their codes, by the start of their codes, or by their names."""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from operator import eq

from surestep.base.errors import ConfigError
from surestep.doctor.rule import list_broken, list_codes, load_rules

_CODE = re.compile(r"SS\d{0,3}", re.IGNORECASE)


def is_selected(code: str, name: str, selectors: Collection[str]) -> bool:
    """Return whether a rule is selected: by its name, or by its code or the start of it."""
    return any(
        code.startswith(selector.upper()) if _CODE.fullmatch(selector) else selector == name
        for selector in selectors
    )


def find_unknown(selector: str) -> str | None:
    """Return what is wrong with a selector that selects no rule; None if it selects one."""
    names = list_codes()
    if any(is_selected(code, name, [selector]) for code, name in names.items()):
        return None
    code = selector.upper()
    near = get_close_matches(code, names, n=9, cutoff=0.75)  # one character may differ
    near.sort(key=lambda known: -sum(map(eq, code, known)))
    near += get_close_matches(selector, names.values())
    hint = (
        f"Did you mean {' or '.join(map(repr, near[:3]))}?"
        if near
        else "`surestep explain` lists them."
    )
    return f"There is no rule {selector!r}. {hint}"


def describe_broken(select: Collection[str], ignore: Collection[str] = ()) -> list[str]:
    """Return a sentence for each selected rule that cannot be loaded."""
    names = list_codes()
    return [
        text
        for code, text in list_broken().items()
        if is_selected(code, names[code], select) and not is_selected(code, names[code], ignore)
    ]


def list_unchecked(select: Collection[str]) -> list[str]:
    """Return a sentence for each selector of rules that `surestep check` cannot see."""
    sentences = []
    for selector in select:
        rules = [rule for rule in load_rules() if is_selected(rule.code, rule.name, [selector])]
        if rules and not any("check" in rule.commands for rule in rules):
            commands = sorted({command for rule in rules for command in rule.commands})
            seen_by = " and ".join(f"`surestep {command}`" for command in commands)
            sentences.append(
                f"{selector}: only {seen_by} can see this; `surestep check` reports nothing."
            )
    return sentences


def select_codes(select: Collection[str], ignore: Collection[str], origin: str) -> tuple[str, ...]:
    """Return the codes of the rules to use.

    Args:
        select: selectors of the rules to use; all if there are none.
        ignore: selectors of rules not to use.
        origin: of the selectors, for messages.

    Raises:
        ConfigError: a selector selects no rule.
    """
    for selector in (*select, *ignore):
        if (message := find_unknown(selector)) is not None:
            raise ConfigError(f"{origin}: {message}")
    return tuple(
        code
        for code, name in list_codes().items()
        if (not select or is_selected(code, name, select)) and not is_selected(code, name, ignore)
    )
