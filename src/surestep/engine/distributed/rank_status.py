"""Where a rank stands: its step, and the Python line that its program is at."""

import json
import linecache
import os
import socket
import sys
import sysconfig
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).parents[2])
_STDLIB = sysconfig.get_paths()["stdlib"]
_OTHERS = "site-packages"
_WAITING = os.path.join("torch", "distributed", "")
_OF_DDP = os.path.join("torch", "nn", "parallel", "distributed.py")  # sends buckets and buffers
_BACKWARD = "_engine_run_backward"  # in which DDP waits for the gradients of the others
_IMPORT = "<module>"  # of a module of torch.distributed, which waits for nobody
_ASKING = tuple(
    str(Path(__file__).with_name(name)) for name in ("rank_status.py", "hang_monitor.py")
)
_INNERMOST = 6  # frames in which a rank that waits for others is in torch.distributed


@dataclass(frozen=True)
class StackLine:
    """A line of a program that is being run."""

    file: str
    number: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        where = f"{_short(self.file)}:{self.number} in {self.function}"
        return f"{where}: {self.code}" if self.code else where

    @property
    def is_of_user(self) -> bool:
        """Whether the line is the user's: neither ours, nor Python's, nor of an installed one."""
        return not (self.file.startswith((_OURS, _STDLIB, "<")) or _OTHERS in self.file)


@dataclass(frozen=True)
class RankStatus:
    """Where a rank stands.

    Attributes:
        rank: of all processes.
        node: number of its machine.
        machine: name of that.
        process: its id there.
        step: which it is in, from 1; None before the first.
        count: goes up each time the rank says where it stands.
        still_s: for how long it has been in the same place of the loop.
        talks: how often it began to exchange something with the others.
        stack: the lines it is at, the innermost first.
    """

    rank: int
    node: int
    machine: str
    process: int
    step: int | None
    count: int
    still_s: float
    stack: tuple[StackLine, ...]
    talks: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """How far it has come; all ranks go through the same places, in one order."""
        return self.talks, self.step or 0

    @property
    def is_waiting(self) -> bool:
        """Whether it is waiting for other ranks, as far as its lines tell."""
        inner = list(takewhile(_is_of_others, self.stack[:_INNERMOST]))
        if any(each.function == _IMPORT for each in inner):
            return False
        return any(_WAITING in each.file for each in inner) or any(
            each.function == _BACKWARD or _OF_DDP in each.file for each in inner[:1]
        )

    @property
    def name(self) -> str:
        """The rank, and where to find it."""
        return format_rank(self.rank, self.node, self.machine, self.process)

    @property
    def line(self) -> str:
        """The line it is at; where that is no line of the user's or ours, the caller's too."""
        if not self.stack:
            return "no Python line is known"
        inner = self.stack[0]
        if inner.is_of_user or inner.file.startswith(_OURS):
            return str(inner)
        callers = [each for each in self.stack if each.is_of_user or each.file.startswith(_OURS)]
        return f"{inner}, called at {callers[0]}" if callers else str(inner)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "RankStatus":
        """Read it from text."""
        found = json.loads(text)
        return cls(**{**found, "stack": tuple(StackLine(**each) for each in found["stack"])})


def _is_of_others(line: StackLine) -> bool:
    """Say whether a line is neither the user's nor ours."""
    return not (line.is_of_user or line.file.startswith(_OURS))


def thread_stack(thread: int) -> tuple[StackLine, ...]:
    """Return the lines that a thread of this process is at, the innermost first."""
    frame: FrameType | None = sys._current_frames().get(thread)
    lines: list[StackLine] = []
    while frame is not None:
        if lines or frame.f_code.co_filename not in _ASKING:  # which is not where it stands
            lines.append(_line(frame, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)


def traceback_stack(error: BaseException) -> tuple[StackLine, ...]:
    """Return the lines that led to an error, the innermost first."""
    trace, lines = error.__traceback__, []
    while trace is not None:
        lines.append(_line(trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return tuple(reversed(lines))


def _line(frame: FrameType, number: int | None) -> StackLine:
    file = frame.f_code.co_filename
    text = linecache.getline(file, number).strip() if number else ""
    return StackLine(file, number or 0, frame.f_code.co_name, text)


def format_rank(rank: int, node: int, machine: str, process: int) -> str:
    """Return what a rank is called: its number, and where to find it."""
    return f"rank {rank} (node {node} {machine!r}, process {process})"


def machine_name() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def _short(file: str) -> str:
    """Return a file as short as it can be found by."""
    if file.startswith(_OURS):
        return os.path.join("surestep", os.path.relpath(file, _OURS))
    if _OTHERS in file:
        return file.partition(_OTHERS + os.sep)[2]
    here = os.path.relpath(file)
    return file if here.startswith("..") or file.startswith("<") else here
