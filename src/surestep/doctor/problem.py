"""What the sides of a rule yield: what is wrong, and where."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from surestep.doctor.finding import Edit, Severity

if TYPE_CHECKING:
    from surestep.doctor.source.files import SourceFile
    from surestep.doctor.source.trace import Event


@dataclass(frozen=True)
class Location:
    """A line of the user's source, or a part of it.

    Attributes:
        file: its path; of a notebook, with the number of the cell.
        line: from 1; 0 if it is not known.
        column: from 1.
        end_column: after the part; 0 if it is not known.
        source: the line, as it is in the file.
    """

    file: str
    line: int
    column: int = 1
    end_column: int = 0
    source: str = ""


NOWHERE = Location("", 0)


@dataclass(frozen=True)
class Problem:
    """A mistake that a rule found in a script, in its data, or in a run.

    Attributes:
        message: what is wrong, in a sentence that names the values of the script or the run.
        evidence: names and numbers that show it, as JSON has them.
        fix: what to write instead, if it is not the rule's FIX.
        severity: if it is not that of the rule.
        location: where in the user's source.
        since_step: the first step with it, from 1; 0 if it was not seen in a step.
        edits: of the file, that fix it without changing anything else; see `surestep.doctor.edits`.
        assumed: a sentence on what the source does not show, and the rule assumed; "" if nothing.
    """

    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""
    severity: Severity | None = None
    location: Location = NOWHERE
    since_step: int = 0
    edits: tuple[Edit, ...] = ()
    assumed: str = ""


def at_node(
    node: ast.AST,
    file: SourceFile,
    message: str,
    evidence: Mapping[str, Any] | None = None,
    fix: str = "",
    edits: tuple[Edit, ...] = (),
    assumed: str = "",
) -> Problem:
    """Return the problem of an expression or a statement; a notebook is not edited."""
    start, end, source = file.mark(node)
    name, line = file.locate(getattr(node, "lineno", 1))
    location = Location(name, line, start + 1, end + 1, source)
    edits = () if file.is_notebook else edits
    return Problem(message, evidence or {}, fix, location=location, edits=edits, assumed=assumed)


def at_event(
    event: Event,
    message: str,
    *,
    edits: tuple[Edit, ...] = (),
    assumed: str = "",
    **evidence: Any,
) -> Problem:
    """Return the problem of an event."""
    return at_node(event.node, event.file, message, evidence, edits=edits, assumed=assumed)
