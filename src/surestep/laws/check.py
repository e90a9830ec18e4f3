"""What a check of a law returns."""

from dataclasses import dataclass

from surestep.laws.proof import Status
from surestep.laws.runner import Finding


@dataclass(frozen=True)
class Result:
    """What a check found.

    Attributes:
        status: of the law.
        text: what was compared, or why not.
        finding: the first value that differs, of a law that fails.
    """

    status: Status
    text: str
    finding: Finding | None = None


def hold(text: str) -> Result:
    """Return that a law holds, and what was compared."""
    return Result("holds", text)


def fail(text: str, finding: Finding | None = None) -> Result:
    """Return that a law fails, in which run, and the first value that differs."""
    return Result("fails", text, finding)


def leave_untested(why: str) -> Result:
    """Return that a law could not be tested, and why."""
    return Result("not tested", why)


def leave_out(why: str) -> Result:
    """Return that a law does not apply to the program, and why."""
    return Result("does not apply", why)
