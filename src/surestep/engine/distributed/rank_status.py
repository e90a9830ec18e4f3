"""What each rank is doing, its step and its Python line, and which ranks the others wait for."""

import os
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from traceback import FrameSummary, StackSummary

from surestep.base.user_code import is_installed_file, is_surestep_file, is_user_file, shorten_path

_COLLECTIVES = os.path.join("torch", "distributed", "")
_DDP = os.path.join("torch", "nn", "parallel", "distributed.py")  # sends buckets and buffers
_BACKWARD = "_engine_run_backward"  # in which DDP waits for the gradients of the other ranks
_IMPORT = "<module>"  # importing a module of torch.distributed waits for no one
_MONITOR = (__file__, str(Path(__file__).with_name("hang_monitor.py")))
_INNERMOST = 6  # a waiting rank is in torch.distributed within so many frames
_MAX_LINES = 16


@dataclass(frozen=True)
class RankStatus:
    """What a rank is doing.

    Attributes:
        rank: its number.
        node: number of its machine.
        name: the rank with its machine and process, for messages.
        step: the step that it is in, from 1; None before the first.
        n_collectives: how many exchanges with the other ranks it has begun.
        line: the Python line of its training thread.
        is_waiting: whether that line waits for other ranks, as far as the stack shows.
        count: increases with every status that the rank publishes.
        machine: what distinguishes its process from one of the same number elsewhere.
        pid: number of its process.
    """

    rank: int
    node: int
    name: str
    step: int | None
    n_collectives: int
    line: str
    is_waiting: bool
    count: int
    machine: str = ""
    pid: int = 0

    @property
    def where(self) -> str:
        """Its step, for a message."""
        return "before the first step" if self.step is None else f"in step {self.step}"


def thread_stack(thread: int) -> list[FrameSummary]:
    """Return the frames of a thread of this process, the innermost first."""
    frame = sys._current_frames().get(thread)
    stack = StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False) if frame else []
    return list(dropwhile(lambda frame: frame.filename in _MONITOR, stack))


def error_stack(error: BaseException) -> list[FrameSummary]:
    """Return the frames that led to an error, the innermost first."""
    return traceback.extract_tb(error.__traceback__)[::-1]


def user_line(error: BaseException) -> str:
    """Return the innermost line of the user's code that led to an error; "" if there is none."""
    for frame in error_stack(error):
        if is_user_file(frame.filename):
            return format_frame(frame)
    return ""


def current_line(stack: Sequence[FrameSummary]) -> str:
    """Return the innermost line; if it is of an installed package, its caller's line too."""
    if not stack:
        return "no Python line is known"
    callers = [frame for frame in stack if not _is_installed(frame)]
    if not callers or callers[0] is stack[0]:
        return format_frame(stack[0])
    return f"{format_frame(stack[0])}, called at {format_frame(callers[0])}"


def is_waiting(stack: Sequence[FrameSummary]) -> bool:
    """Return whether a rank with this stack waits for other ranks."""
    inner = list(takewhile(_is_installed, stack[:_INNERMOST]))
    if not inner or any(frame.name == _IMPORT for frame in inner):
        return False
    is_ddp = inner[0].name == _BACKWARD or _DDP in inner[0].filename
    return is_ddp or any(_COLLECTIVES in frame.filename for frame in inner)


def format_frame(frame: FrameSummary) -> str:
    """Return a frame as "FILE:LINE in FUNCTION: CODE"."""
    where = f"{shorten_path(frame.filename)}:{frame.lineno} in {frame.name}"
    return f"{where}: {frame.line}" if frame.line else where


def _is_installed(frame: FrameSummary) -> bool:
    """Return whether a frame is neither the user's nor surestep's."""
    return is_installed_file(frame.filename) and not is_surestep_file(frame.filename)


def blocking_ranks(statuses: Mapping[int, RankStatus], silent: Collection[int]) -> list[int]:
    """Return the ranks that the others wait for, as far as is known.

    These are the silent ones; otherwise those that are behind; of these, those that do not wait
    themselves. The list is empty if all wait for each other, or all are busy.
    """
    if silent:
        return sorted(silent)
    last = lagging_ranks(statuses) or sorted(statuses)
    blocking = [rank for rank in last if not statuses[rank].is_waiting] or last
    return blocking if len(blocking) < len(statuses) else []


def lagging_ranks(statuses: Mapping[int, RankStatus]) -> list[int]:
    """Return the ranks behind others; all ranks make the same exchanges in the same order."""
    progress = {rank: (status.n_collectives, status.step or 0) for rank, status in statuses.items()}
    least, most = min(progress.values()), max(progress.values())
    return sorted(rank for rank, steps in progress.items() if steps == least < most)


def hang_summary(
    statuses: Mapping[int, RankStatus], silent: Collection[int], waited_s: float
) -> str:
    """Return the sentence that names the ranks that the others wait for."""
    names = [statuses[rank].name for rank in blocking_ranks(statuses, silent)]
    where = max(statuses.values(), key=lambda status: status.step or 0).where
    if not names:
        return f"All ranks have waited for each other {where} for {waited_s:.3g} s."
    who, is_one = capitalize_first(", ".join(names)), len(names) == 1
    if silent:
        verb = "does" if is_one else "do"
        return f"{who} {verb} not answer; the others have waited {where} for {waited_s:.3g} s."
    verb = "has" if is_one else "have"
    return f"{who} {verb} kept the others waiting {where} for {waited_s:.3g} s."


def rank_table(statuses: Mapping[int, RankStatus], silent: Collection[int]) -> list[str]:
    """Return what each rank is doing, a line a rank; those that the others wait for come first."""
    first = blocking_ranks(statuses, silent)
    ranks = [*first, *(rank for rank in sorted(statuses) if rank not in first)]
    lines = []
    for rank in ranks[:_MAX_LINES]:
        status = statuses[rank]
        note = ", last status at" if rank in silent else ":"
        waits = " (waits for others)" if status.is_waiting else ""
        lines.append(f"  {status.name}, {status.where}{note} {status.line}{waits}")
    return [*lines, f"  and {len(ranks) - _MAX_LINES} others"] if ranks[_MAX_LINES:] else lines


def describe_lost_rank(status: RankStatus, *, is_silent: bool) -> str:
    """Return the sentence about a rank without which the others could not continue."""
    verb = "no longer answers" if is_silent else "did not arrive"
    verb_be = "was last" if is_silent else "is"
    return f"{capitalize_first(status.name)} {verb}; it {verb_be} at {status.line}."


def capitalize_first(text: str) -> str:
    """Begin a sentence with a text."""
    return text[:1].upper() + text[1:]


def format_ranks(ranks: Collection[int]) -> str:
    """Return ranks as "0, 2-7"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][-1] == rank - 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)
