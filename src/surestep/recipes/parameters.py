"""Read the values of a recipe's own parameters. It needs no torch.

Values of plain types are read before the recipe is imported, the others after it.
"""

import ast
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from surestep.base.errors import suggest_names
from surestep.config.group import Locations, not_allowed, placed

_PLAIN: Final[Mapping[str, Any]] = {
    **{each.__name__: each for each in (int, float, str, bool)},
    "None": type(None),
}


class Values(NamedTuple):
    """The values that were read.

    Attributes:
        by_name: those that are right.
        faults: a sentence for each of the others.
    """

    by_name: dict[str, Any]
    faults: list[str]


def plain_type(annotation: str | None, default: str | None) -> Any:
    """Return the type that the source of a parameter shows.

    Args:
        annotation: its text; None if there is none.
        default: its text; None if there is none.

    Returns:
        int, float, str, bool, or a union of them and None; None if it is anything else.
    """
    if annotation is not None:
        members = [_PLAIN.get(each.strip()) for each in annotation.split("|")]
        return None if None in members else reduce(or_, members)
    try:
        kind = type(ast.literal_eval(default or ""))
    except (ValueError, SyntaxError):
        return None
    return kind if kind in (int, float, str, bool) else None


def read_parameters(
    recipe: str, types: Mapping[str, Any], typed: Mapping[str, Any], locations: Locations
) -> Values:
    """Read what was typed for the parameters as their types.

    Args:
        recipe: its name.
        types: of its parameters; None is a type that is not known yet, whose value is left out.
        typed: the values, which are text if they come from the command line.
        locations: where each was set, by its full name, "task.hidden".
    """
    values: dict[str, Any] = {}
    faults = []
    for name, value in typed.items():
        full = f"task.{name}"
        if name not in types:
            sentence = f"{recipe}'s task has no parameter {name!r}. {suggest_names(name, types)}"
            faults.append(placed(full, sentence, locations))
        elif types[name] is not None:
            try:
                values[name] = _read(types[name], value)
            except ValueError as error:
                faults.append(placed(full, not_allowed(full, value, str(error)), locations))
    return Values(values, faults)


def _read(kind: Any, value: Any) -> Any:
    """Read one value.

    Raises:
        ValueError: it is not of its type.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
    except PydanticSchemaGenerationError:
        name = getattr(kind, "__name__", kind)
        raise ValueError(f"a {name} has no form as text. Set it in the recipe.") from None
    try:
        return adapter.validate_python(None if value == "None" and kind is not str else value)
    except ValidationError as first:
        try:
            return adapter.validate_json(str(value))
        except ValidationError:
            text = str(first.errors()[0]["msg"])
            raise ValueError(text.replace("Input should be", "it must be")) from None
