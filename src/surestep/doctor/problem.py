"""What a rule yields: where a mistake is, and what is wrong."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from surestep.doctor.finding import Edit
from surestep.doctor.source.files import SourceFile
from surestep.doctor.source.trace import Event


@dataclass(frozen=True)
class Problem:
    """A mistake that a rule found in a script.

    Attributes:
        at: the expression or statement to point at.
        file: in which it is.
        message: what is wrong, in a sentence that names the values of the script.
        evidence: names and numbers that show it.
        fix: what to write instead, if it is not the rule's FIX.
        edits: of the file, that fix it without changing anything else; see `surestep.doctor.edits`.
    """

    at: ast.AST
    file: SourceFile
    message: str
    evidence: dict[str, Any] | None = None
    fix: str = ""
    edits: tuple[Edit, ...] = ()


def at_event(
    event: Event, message: str, *, edits: tuple[Edit, ...] = (), **evidence: Any
) -> Problem:
    """Return the problem of an event."""
    return Problem(event.node, event.file, message, evidence or None, edits=edits)
