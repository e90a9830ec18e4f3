"""Runs functions in new processes: forks of this one, or new interpreters."""

import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from surestep.base.errors import SurestepError
from surestep.base.processes import kill_tree
from surestep.base.secrets import mask_secrets

Method = Literal["fork", "spawn"]
_OUTPUT = "output.txt"
_LONGEST_END_S = 10.0  # of a process that has answered
_HASH_SEED = "PYTHONHASHSEED"
_parent: Connection | None = None  # of a process that was started here


class TimeIsOverError(Exception):
    """The time that all processes may take is over."""


class Outcome(NamedTuple):
    """How a process ended.

    Attributes:
        value: what its function returned, or sent before a signal killed it.
        error: what it raised; "" if it raised nothing.
        kind: the class of the error.
        signal: that killed it; 0 if none did.
    """

    value: Any = None
    error: str = ""
    kind: str = ""
    signal: int = 0


@dataclass(frozen=True)
class Call:
    """A function to call in a new process.

    Attributes:
        function: returns something that can be pickled.
        folder: where it writes its output; it is created.
        arguments: of the function.
        method: fork, or spawn: a new interpreter, whose sets have a different order. The function
            and its arguments are then pickled.
    """

    function: Callable[..., Any]
    folder: Path
    arguments: Sequence[Any] = ()
    method: Method = "fork"


class _Running(NamedTuple):
    process: BaseProcess
    connection: Connection


def call_in_processes(
    calls: Sequence[Call], *, at_once: int, end: float, is_group: bool = False
) -> list[Outcome]:
    """Call functions, some at once; return their outcomes in order.

    Args:
        calls: what to call, in order.
        at_once: how many processes at most.
        end: when they are killed, in seconds of `time.monotonic()`.
        is_group: they wait for each other, so if one fails, the others are killed.

    Raises:
        TimeIsOverError: they were killed.
    """
    running: dict[int, _Running] = {}
    outcomes: list[Outcome] = [Outcome()] * len(calls)
    waiting = list(enumerate(calls))
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, call = waiting.pop(0)
                running[number] = _start(call)
            for number in _wait(running, end):
                outcomes[number] = _end(running.pop(number))
                if is_group and (outcomes[number].error or outcomes[number].signal):
                    return [outcomes[number]] * len(calls)
    finally:
        for process, _ in running.values():
            assert process.pid is not None
            kill_tree(process.pid)
            process.join()
    return outcomes


def _wait(running: dict[int, _Running], end: float) -> list[int]:
    """Return which processes have answered or ended.

    Raises:
        TimeIsOverError: none has when the time is over.
    """
    # A process that is killed leaves data workers, which have its end of the connection too.
    objects: list[Any] = [one.connection for one in running.values()]
    objects += [one.process.sentinel for one in running.values()]
    ready = wait(objects, max(0.0, end - time.monotonic()))
    if not ready:
        raise TimeIsOverError
    return [
        number
        for number, one in running.items()
        if one.connection in ready or one.process.sentinel in ready
    ]


def _start(call: Call) -> _Running:
    call.folder.mkdir(parents=True, exist_ok=True)
    context: Any = multiprocessing.get_context(call.method)
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(call, its))
    before = os.environ.get(_HASH_SEED)
    if call.method == "spawn":
        os.environ[_HASH_SEED] = "1" if before != "1" else "2"
    try:
        with warnings.catch_warnings():  # of threads, which a process that imported torch may have
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        os.environ.pop(_HASH_SEED, None)
        if before is not None:
            os.environ[_HASH_SEED] = before
    its.close()
    return _Running(process, ours)


def _run(call: Call, connection: Connection) -> None:
    """Call the function in this process, which is new, and send the outcome."""
    global _parent
    _parent = connection
    output = os.open(call.folder / _OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    torch.set_num_threads(1)  # a fork has none of the threads that OpenMP counts on
    warnings.simplefilter("ignore")  # what a run warns of is not what is compared
    try:
        outcome = Outcome(call.function(*call.arguments))
    except BaseException as error:
        traceback.print_exc()
        outcome = Outcome(error=_describe(error), kind=type(error).__name__)
    connection.send(outcome)


def send_before_kill(value: Any) -> None:
    """Send the value of this process, which kills itself next."""
    assert _parent is not None
    _parent.send(Outcome(value))


def _describe(error: BaseException) -> str:
    """Return the text of an error; of one that surestep does not raise, with its last line."""
    if isinstance(error, SurestepError):
        return mask_secrets(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    return mask_secrets(f"{where}{type(error).__name__}: {error}")


def _end(running: _Running) -> Outcome:
    """Return the outcome of a process that has answered or ended."""
    process, connection = running
    outcome: Outcome | None = None
    with suppress(EOFError):
        if connection.poll():
            outcome = connection.recv()
    process.join(_LONGEST_END_S)
    if outcome is not None and process.is_alive():  # a thread of the program has not ended
        assert process.pid is not None
        kill_tree(process.pid)
        process.join()
        return outcome
    process.join()
    connection.close()
    code = process.exitcode or 0
    if code < 0:
        return (outcome or Outcome())._replace(signal=-code)
    return outcome or Outcome(error=f"the process ended with code {code} and no result")


def count_at_once() -> int:
    """Return how many processes to run at once: one for each core, and at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
    return max(1, min(4, cores))
