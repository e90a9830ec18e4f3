"""The names of a space: options, and those that a trial has only if it has made a choice.

"if.optim.name.sgd.optim.momentum" is optim.momentum in the table [if.optim.name.sgd] of a space
file: trials whose optim.name is sgd choose a value for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from surestep.tuning.dimension import Condition, Dimension, label_choices, parse_dimension

IF = "if."
_HOW = "Write a table such as [if.optim.name.sgd]: an option of the space, and one of its choices."


def parse_dimensions(
    values: Iterable[tuple[str, Any]],
    full_name: Callable[[str], str],
    fault: Callable[[str, str], None],
) -> tuple[Dimension, ...]:
    """Parse the dimensions of a space; one with a condition comes after what it depends on.

    Args:
        values: of each dimension, with its name.
        full_name: returns the full name of an option as it is typed.
        fault: called with a name as it is typed, and what is wrong with it.
    """
    found: list[Dimension] = []
    left = list(values)
    while left:
        faults: list[tuple[str, Any, str]] = []
        for typed, value in left:
            try:
                conditions, name = _split_name(typed, found)
                made = replace(parse_dimension(full_name(name), value), conditions=conditions)
                if any(made.name == one.name and _can_coincide(made, one) for one in found):
                    raise ValueError("it is in the space twice. Leave one out.")
            except ValueError as error:
                faults.append((typed, value, str(error)))
            else:
                found.append(made)
        if len(faults) == len(left):
            for typed, _, text in faults:
                fault(typed, text)
            break
        left = [(typed, value) for typed, value, _ in faults]  # what they depend on may be known
    names = [dimension.name for dimension in found]
    shared = {name for name in names if names.count(name) > 1}
    found = [replace(one, shares_name=one.name in shared) for one in found]
    return tuple(sorted(found, key=lambda one: (len(one.conditions), one.name, one.key)))


def _split_name(typed: str, known: Sequence[Dimension]) -> tuple[tuple[Condition, ...], str]:
    """Return the conditions of a name, and the option.

    Raises:
        ValueError: a condition is not a choice of a known dimension.
    """
    conditions: tuple[Condition, ...] = ()
    while typed.startswith(IF):
        parent, text = _find_parent(typed.removeprefix(IF), known, conditions)
        condition, typed = _find_choice(text, parent)
        conditions = (*conditions, condition)
    return conditions, typed


def _find_parent(
    text: str, known: Sequence[Dimension], conditions: Sequence[Condition]
) -> tuple[Dimension, str]:
    """Return the dimension that a text begins with, and the rest."""
    for parent in sorted(known, key=lambda one: -len(one.name)):
        has_same = all(condition in conditions for condition in parent.conditions)
        for name in (parent.name, parent.name.replace("_", "-")):
            if has_same and text.startswith(f"{name}."):
                return parent, text.removeprefix(f"{name}.")
    raise ValueError(f"it depends on an option that is not in the space. {_HOW}")


def _find_choice(text: str, parent: Dimension) -> tuple[Condition, str]:
    """Return the condition with the choice that a text begins with, and the rest."""
    labels = label_choices(parent)
    spelled = [(label, label, choice) for label, choice in zip(labels, parent.choices, strict=True)]
    spelled += [(str(choice), label, choice) for _, label, choice in spelled]  # True, in Python
    for start, label, choice in sorted(spelled, key=lambda one: -len(one[0])):
        if text.startswith(f"{start}."):
            return Condition(parent.name, choice, label), text.removeprefix(f"{start}.")
    if not labels:
        raise ValueError(f"it depends on {parent.name}, which has no list of choices. {_HOW}")
    raise ValueError(f"it depends on {parent.name}, whose choices are {', '.join(labels)}. {_HOW}")


def _can_coincide(one: Dimension, other: Dimension) -> bool:
    """Whether a trial can have both dimensions."""
    return not any(
        mine.name == theirs.name and mine.label != theirs.label
        for mine in one.conditions
        for theirs in other.conditions
    )
