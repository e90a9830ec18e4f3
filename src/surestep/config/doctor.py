"""Options of the rules that check a run: which are ignored, and when a command fails."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from surestep.config.annotations import Option, Word
from surestep.config.group import ConfigGroup
from surestep.config.option import DISPLAY, ResumeEffect, option

_FORM = "write the code of a rule and the reason, such as SS117='we clip on purpose'"


def _texts(value: Any) -> tuple[str, ...]:
    """Return what is ignored as the text that is stored, "SS117=reason"."""
    if isinstance(value, Mapping):
        pairs = [(str(code), str(reason)) for code, reason in value.items()]
    else:
        several = (value,) if isinstance(value, str) else value
        if not isinstance(several, (tuple, list)) or not all(isinstance(v, str) for v in several):
            raise ValueError(_FORM)
        pairs = [(text.partition("=")[0], text.partition("=")[2]) for text in several]
    pairs = [(code.strip().upper(), reason.strip()) for code, reason in pairs]
    for code, reason in pairs:
        if not reason:
            raise ValueError(f"{code} has no reason: {_FORM}")
    return tuple(f"{code}={reason}" for code, reason in dict(pairs).items())


def reasons_by_code(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the reason of each code of `doctor.ignore`."""
    return {text.partition("=")[0]: text.partition("=")[2] for text in texts}


class Doctor(ConfigGroup):
    """What the rules of `surestep explain` check in a run.

    Example:
        >>> import surestep
        >>> surestep.Doctor(ignore={"SS117": "we clip on purpose"}).ignore
        ('SS117=we clip on purpose',)
    """

    prefix: ClassVar[str] = "doctor."
    resume: ClassVar[ResumeEffect] = DISPLAY
    ignore: Option[
        Annotated[tuple[str, ...], BeforeValidator(_texts)], str | Sequence[str] | Mapping[str, str]
    ] = option(
        "Rules not to check, with the reason for each: SS117='we clip on purpose'.",
        default=((), "not set: all rules are checked"),
    )
    fail_on: Word[Literal["error", "warning", "never"]] = option(
        "Exit code 1 of the command if there is a finding of this severity, or a worse one.",
        default=("never", "not set: findings do not change the exit code"),
    )
    check_data: Word[Literal["sample", "all", "off"]] = option(
        "Check the data before training: sample reads for about a second, all reads every sample.",
        default=("sample", "not set: samples that are spread over the data are read"),
    )
