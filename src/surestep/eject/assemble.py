"""Put a script together: imports, constants, the recipe, and the functions of the program."""

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from surestep.base.errors import RecipeError
from surestep.eject.choices import Choices
from surestep.eject.layout import WIDTH, format_imports, format_tuple, join_statements
from surestep.eject.source import Source, Statement, read_source
from surestep.eject.specialize import remove_marks, specialize

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = ("program.py", "orders.py", "loading.py", "curves.py", "optimizers.py", "losses.py")
_OWN = "surestep.eject.templates."
_TAIL = 'if __name__ == "__main__":\n    train()\n'


def assemble(choices: Choices, recipe: Source, head: str) -> str:
    """Return the script.

    Args:
        choices: of the template code.
        recipe: what `task` needs, without surestep.
        head: the first lines.

    Raises:
        RecipeError: the recipe has a name that the program has too.
    """
    library = read_library(choices)
    reached = _merge(library, recipe).reach(["train"])
    own = library.reach(["train"])
    _check_names(own, recipe)
    of_program = [one for one in reached.statements if one in own.statements]
    of_recipe = [one for one in reached.statements if one in recipe.statements]
    parts = [one for one in of_program if "Parts" in one.names]
    constants = [_with_value(one, choices.constants) for one in of_program if not one.is_block]
    functions = [one for one in of_program if one.is_block and one not in parts]
    body = join_statements([*constants, *parts, *of_recipe, *functions])
    gap = "\n\n" if constants else "\n\n\n"
    return f"{head}\n{format_imports(reached.imports)}{gap}{body}\n\n\n{_TAIL}"


def read_library(choices: Choices) -> Source:
    """Return the template code that the choices keep, and the code beside it."""
    texts = [(_TEMPLATES / name).read_text(encoding="utf-8") for name in _FILES]
    kept = [specialize(text, choices.flags) for text in texts]
    whole = "".join(map(remove_marks, texts))
    for old, new in choices.renamed.items():
        # A template line that was changed would keep its old text without a word.
        assert old in whole + "".join(kept), f"no template has {old!r}"
        kept = [text.replace(old, new) for text in kept]
    found = _merge(*map(read_source, (*kept, "\n\n".join(choices.code))))
    imports = {name: one for name, one in found.imports.items() if not one.module.startswith(_OWN)}
    return replace(found, imports=imports)


def _merge(*sources: Source) -> Source:
    """Return the statements of all; of one name the last counts."""
    statements = tuple(one for source in sources for one in source.statements)
    imports = {name: found for source in sources for name, found in source.imports.items()}
    return Source(statements, imports)


def _check_names(program: Source, recipe: Source) -> None:
    """Check that the recipe and the program do not use one name for two things."""
    bound = {name for one in program.statements for name in one.names} - {"task"}
    for one in recipe.statements:
        for name in one.names:
            if name in bound or name in program.imports:
                raise RecipeError(
                    f"The recipe binds {name!r} at its top, and so does the script. Give it a "
                    "different name in the recipe."
                )
    for name, found in recipe.imports.items():
        if name in bound or program.imports.get(name, found) != found:
            raise RecipeError(
                f"The recipe imports {found.module}.{found.name} as {name!r}, a name that the "
                "script uses for something else. Import it under a different name."
            )


def _with_value(statement: Statement, constants: Mapping[str, Any]) -> Statement:
    """Return the statement of a constant with its value in this Plan, and its comment."""
    name = statement.names[0]
    if name not in constants:
        return statement
    comment = statement.text.partition("  # ")[2]
    value = constants[name]
    text = f"{name} = {_literal(value)}"
    line = f"{text}  # {comment}" if comment else text
    if len(line) > WIDTH and isinstance(value, tuple):
        text = format_tuple([_literal(member) for member in value], exploded=True)
        line = f"# {comment}\n{name} = {text}"
    return replace(statement, text=line, node=ast.parse(line).body[0])


def _literal(value: Any) -> str:
    """Return the source of a constant, with text in double quotes."""
    if isinstance(value, tuple):
        return format_tuple([_literal(member) for member in value])
    return f'"{value}"' if isinstance(value, str) else repr(value)
