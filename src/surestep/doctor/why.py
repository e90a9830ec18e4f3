"""Explain why a rule reports, or does not report, a line: what is known there, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surestep.base.errors import ConfigError
from surestep.doctor.rule import load_rules
from surestep.doctor.selection import find_unknown, is_selected
from surestep.doctor.source.doubts import Doubt, listen
from surestep.doctor.source.evaluation import find_forwards
from surestep.doctor.source.files import Project, UnreadableError, read_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.steps import may_train
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import find_actions, is_without_grad

_MOST = 20  # events of a line, and doubts, that are listed


def explain_line(place: str, selector: str) -> list[str]:
    """Return lines on what the analysis knows at a place, and where it gave up for a rule.

    Args:
        place: "train.py:38".
        selector: code or name of the rule.

    Raises:
        ConfigError: there is no such line or rule, or `surestep check` cannot see its mistake.
    """
    path, line = _parse(place)
    rules = [rule for rule in load_rules() if is_selected(rule.code, rule.name, [selector])]
    if message := find_unknown(selector):
        raise ConfigError(f"--why: {message}")
    if len(rules) != 1 or "check" not in rules[0].commands:
        raise ConfigError(
            f"--why {place} {selector}: give one rule that `surestep check` has, such as SS401."
        )
    try:
        file = read_source(path)
    except UnreadableError as error:
        raise ConfigError(f"--why: {error}") from None
    if line > len(file.lines):
        raise ConfigError(f"--why {place}: {path} has {len(file.lines)} lines.")
    program = follow(file, Project())
    with listen() as doubts:
        found = [f.message for f in rules[0].check(program) if f.line == line]
    return [
        f"{path}:{line} {rules[0].code} {found[0] if found else 'reports nothing here.'}",
        *_describe_line(program, line),
        *_describe_doubts(doubts, program, line),
    ]


def _parse(place: str) -> tuple[Path, int]:
    name, _, number = place.rpartition(":")
    if not name or not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"--why {place!r} is not a line of a file. Write --why train.py:38 SS401")
    return Path(name), int(number)


def _describe_line(program: Program, line: int) -> Iterator[str]:
    found = [
        (trace, event)
        for trace in program.traces
        for event in trace.events
        if event.line == line and event.file is program.file and event.kind != "test"
    ]
    if not found:
        yield "  Nothing here was followed: it calls and assigns nothing, or it is not reached."
    for event in () if found else program.truncated[:_MOST]:
        yield f"  The script is too long: following it ended at {event.file.path}:{event.line}."
    for trace, event in found[:_MOST]:
        yield f"  {_describe(trace, event)}"


def _describe(trace: Trace, event: Event) -> str:
    """Return what is known of an event: what it is, and what is around it."""
    entry = "the script" if trace.entry is None else f"`{trace.entry.name}`, which nothing calls"
    parts = [f"{event.kind} `{event.text}`, followed from {entry}"]
    kinds = [action.kind for action in find_actions(trace) if action.event is event]
    parts += [f"the part {kind} of a training step" for kind in kinds]
    if any(event is forward for forward, _ in find_forwards(trace)):
        parts.append("a forward pass of a model")
    if event.loops:
        lines = ", ".join(str(getattr(loop.node, "lineno", "?")) for loop in event.loops)
        parts.append(f"in the loops of lines {lines}")
    if event.branches:
        parts.append(f"under {len(event.branches)} conditions")
    if is_without_grad(event):
        parts.append("without gradients")
    if not kinds and may_train(event):
        parts.append("not followed: it may be any part of a training step")
    return "; ".join(parts)


def _describe_doubts(doubts: list[Doubt], program: Program, line: int) -> Iterator[str]:
    """Yield where questions gave up; those about the line, or all if none is."""
    file = program.file
    here = [
        doubt
        for doubt in doubts
        if any(event.line == line and event.file is file for event in doubt.about)
    ]
    lines = dict.fromkeys(
        f"  {doubt.cause.file.path}:{doubt.cause.line} `{doubt.cause.text}` {doubt.text}."
        for doubt in here or doubts
    )
    if not lines:
        yield "No question of the rule gave up: what it looks for is not there, as far as is seen."
        return
    yield "It gave up here:" if here else "It did not ask about this line, and gave up elsewhere:"
    yield from list(lines)[:_MOST]
