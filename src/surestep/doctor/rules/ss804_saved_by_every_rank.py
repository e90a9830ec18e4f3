"""Every rank writes the same checkpoint file.

Each process of a distributed script runs the same lines, so all of them write one file at the same
time. They overwrite each other's bytes: the file can be corrupt, or mixed from two writes. It often
works on one machine and fails later, on a shared file system.

Ignore it if each rank has a separate file system. A file whose name contains the rank is not
reported.

Source: https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html

Wrong:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        torch.save(model.module.state_dict(), f"epoch_{epoch}.pt")

Right:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.barrier()
"""

from __future__ import annotations

import ast
import os
import platform
import re
from collections.abc import Iterator, Mapping
from typing import Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.source.checkpoints import RANK, depends_on_rank, find_saves
from surestep.doctor.source.trace import Event, Program, Trace, once_per_trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Constant,
    Function,
    Item,
    Unknown,
    Value,
    last_name,
    walk,
)
from surestep.doctor.watcher import Script, Watcher

_RANK_FUNCTION = re.compile(  # `main` and `main_worker` run on all ranks
    r"rank|master|leader|chief|primary|coordinator|main_(proc|only|node)|(on|only|is|if|by)_main",
    re.IGNORECASE,
)
SEVERITY = "error"
_MOST_FILES = 100  # that are remembered
# It has one process here, and would be two runs of rank 0.
FIX = "Save inside `if torch.distributed.get_rank() == 0:`."


def check(program: Program) -> Iterator[Problem]:
    """Find states of models that a script with a process group saves on all ranks."""
    for trace in program.traces:
        if not _has_ranks(trace):
            continue
        for save in find_saves(trace):
            is_one_file = _is_every_file_known(save.path) and not depends_on_rank(save.path)
            if not is_one_file or not _holds_model_state(save.value):
                continue
            if not _may_be_limited_to_one_rank(trace, save.event):
                yield at_event(
                    save.event, f"All ranks write `{describe(save.path)}` at the same time."
                )


def _has_ranks(trace: Trace) -> bool:
    """Return whether several ranks execute a trace: none of its groups has a constant rank."""
    calls = [call for _, call in trace.calls]
    groups = [call for call in calls if call.path.endswith("init_process_group")]
    ranks = [call.argument(4, "rank") for call in groups]
    return bool(groups) and not any(isinstance(rank, Constant) for rank in ranks)


def _holds_model_state(value: Value) -> bool:
    """Return whether a saved value has the state of an object, as `state_dict()` returns it."""
    return any(isinstance(part, Call) and part.name == "state_dict" for part in walk(value))


def _may_be_limited_to_one_rank(trace: Trace, event: Event) -> bool:
    """Return whether an event may happen on one rank only.

    A condition is known to be the same on all ranks only if it is computed here, so that a bare
    parameter such as `save` may mean `rank == 0`.
    """
    for branch in event.branches:
        if branch.test is None or depends_on_rank(branch.test) or _is_bare(branch.test):
            return True
        if _reads(branch.test, _find_rank_attributes(trace)):
            return True
        node = getattr(branch.node, "test", branch.node)
        if isinstance(node, ast.expr) and RANK.search(ast.unparse(node)):
            return True
    if any(depends_on_rank(context) for context in event.contexts):
        return True
    if any(_RANK_FUNCTION.search(function.name) for function in event.stack):
        return True
    decorators = (part for function in event.stack for part in function.decorators)
    return any(RANK.search(last_name(decorator)) for decorator in decorators)


@once_per_trace
def _find_rank_attributes(trace: Trace) -> set[str]:
    """Return the attributes that a trace sets by the rank, such as `args.writes`."""
    names: set[str] = set()
    for event in trace.events:
        if event.kind != "store" or not isinstance(event.target, ast.Attribute):
            continue
        if depends_on_rank(event.value) or _reads(event.value, names):
            names.add(event.target.attr)
    return names


def _reads(value: Value, names: set[str]) -> bool:
    return any(isinstance(part, Attribute) and part.name in names for part in walk(value))


def _is_bare(test: Value) -> bool:
    return any(isinstance(part, Unknown) for part in (test, *test.inputs)) and not isinstance(
        test, (Attribute, Item)
    )


def _is_every_file_known(path: Value | None) -> bool:
    """Return whether the name of a file is made here, not given as a parameter of a function."""
    if path is None:
        return False
    return not any(isinstance(part, (Unknown, Function)) for part in walk(path))


class SavedByEveryRankWatcher(Watcher):
    """Compare the files that the ranks write."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[Location, int]] = {}

    def on_save(self, run: Script, value: Any, file: Any) -> None:
        if len(self._files) < _MOST_FILES and isinstance(file, (str, os.PathLike)):
            path = os.path.realpath(os.fspath(file))
            if path not in self._files:
                self._files[path] = run.locate(), run.step + 1

    def report_rank(self, run: Script) -> Any:
        files = {path: (seen.file, seen.line, step) for path, (seen, step) in self._files.items()}
        return {"machine": platform.node(), "files": files} if files else None

    def observe_ranks(self, facts: Mapping[int, Any]) -> Iterator[Problem]:
        writers: dict[tuple[str, str], list[int]] = {}
        for rank, fact in facts.items():
            for path in fact["files"]:
                writers.setdefault((fact["machine"], path), []).append(rank)
        shared = [(path, ranks) for (_, path), ranks in writers.items() if len(ranks) > 1]
        seen = set()
        for path, ranks in shared:
            file, line, step = facts[ranks[0]]["files"][path]
            if (file, line) not in seen:
                seen.add((file, line))
                yield Problem(
                    f"{len(ranks)} ranks write {path}.",
                    {"path": path, "ranks": ranks, "files": len(shared)},
                    location=Location(file, line),
                    since_step=step,
                )
