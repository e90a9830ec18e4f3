"""Each worker of a DataLoader yields all samples of an iterable dataset.

A DataLoader gives each worker a copy of the dataset and joins what they yield. An `__iter__` that
does not ask `get_worker_info()` for its part yields everything in each worker, so with 4 workers an
epoch has each sample 4 times. Nothing fails: epochs take longer, and evaluations count too much.

Infinite streams and random samples are not reported: there, workers only add more of them.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset

Wrong:

    import torch
    from torch.utils.data import DataLoader, IterableDataset


    class Numbers(IterableDataset):
        def __init__(self, start, end) -> None:
            super().__init__()
            self.start, self.end = start, end

        def __iter__(self):
            return iter(range(self.start, self.end))


    loader = DataLoader(Numbers(0, 100), batch_size=10, num_workers=2)
    for batch in loader:
        print(batch.mean(dtype=torch.float))

Right:

    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info


    class Numbers(IterableDataset):
        def __init__(self, start, end) -> None:
            super().__init__()
            self.start, self.end = start, end

        def __iter__(self):
            info = get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            return iter(range(self.start + first, self.end, step))


    loader = DataLoader(Numbers(0, 100), batch_size=10, num_workers=2)
    for batch in loader:
        print(batch.mean(dtype=torch.float))
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.workers import WorkersWatcher
from surestep.doctor.source.loaders import find_loaders, method_of, source_of
from surestep.doctor.source.trace import Program
from surestep.doctor.source.values import Call, Collection, Constant, Instance

SEVERITY = "error"
FIX = "Let __iter__ yield only the part of torch.utils.data.get_worker_info().id, or num_workers=0."
_DIVIDES = re.compile(r"worker|shard|rank|partition", re.IGNORECASE)
_DRAWS = re.compile(r"rand|shuffle|sample\(|choice", re.IGNORECASE)
_DATA = ("torch.", "numpy.", "range", "list", "sorted", "open")


def check(program: Program) -> Iterator[Problem]:
    """Find iterable datasets that every worker reads completely."""
    for trace in program.traces:
        for loader in find_loaders(trace):
            dataset = loader.dataset
            if dataset is None or loader.workers < 2 or loader.is_set("worker_init_fn"):
                continue
            if _is_iterable(dataset) and _yields_everything(dataset):
                name = dataset.cls.definition.name
                yield at_event(
                    loader.event,
                    f"Each of the {loader.workers} workers yields all samples of `{name}`: its "
                    "`__iter__` does not ask which worker it is.",
                    workers=loader.workers,
                )


def _is_iterable(dataset: Instance) -> bool:
    return any(base.endswith(".IterableDataset") for base in dataset.cls.outside_bases)


def _yields_everything(dataset: Instance) -> bool:
    """Return whether the loops of `__iter__` are over data that is the same in each worker."""
    method = method_of(dataset.cls, "__iter__")
    if method is None or _DIVIDES.search(source_of(dataset.cls)):
        return False
    nodes = list(ast.walk(method))
    is_infinite = any(isinstance(node, ast.While) for node in nodes)
    if is_infinite or _DRAWS.search(ast.unparse(method)):
        return False
    opened = {
        item.optional_vars.id
        for node in nodes
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and _is_open(item.context_expr)
    }
    found = [node.iter for node in nodes if isinstance(node, ast.For)]
    found += [node.value for node in nodes if isinstance(node, ast.YieldFrom)]
    found += [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
    return bool(found) and _is_same_data(found[0], dataset, opened)


def _is_same_data(node: ast.expr, dataset: Instance, opened: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in opened
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            value = dataset.attributes.get(name)
            if isinstance(value, Call):
                return value.path.startswith(_DATA)
            return isinstance(value, (Collection, Constant))
        case ast.Call(func=ast.Name(id="range")):
            return True
        case ast.Call(func=ast.Name(id="iter" | "enumerate" | "zip" | "map"), args=args) if args:
            return _is_same_data(args[-1], dataset, opened)
    return _is_open(node)


def _is_open(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open"


class IterableDuplicatedByWorkersWatcher(WorkersWatcher):
    """Compare the first batches of the workers."""

    IS_ITERABLE = True
