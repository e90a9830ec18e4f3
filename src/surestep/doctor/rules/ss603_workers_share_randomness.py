"""The workers of a DataLoader, or its epochs, draw the same random numbers.

PyTorch seeds the global generators of torch, `random` and NumPy in each worker and epoch. A
generator that the dataset keeps is copied to each worker with its state: all workers draw the same
numbers, and again in each epoch. A `worker_init_fn` that seeds with a fixed number does the same,
and one that seeds with the number of the worker repeats the draws in each epoch. Nothing fails:
there are fewer different augmentations than you think.

Source: https://docs.pytorch.org/docs/stable/notes/faq.html#my-data-loader-workers-return-identical-random-numbers

Wrong:

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Noisy(Dataset):
        def __init__(self) -> None:
            self.data = torch.randn(64, 4)
            self.rng = np.random.default_rng(0)

        def __len__(self):
            return len(self.data)

        def __getitem__(self, index):
            return self.data[index] + self.rng.normal(0, 0.1)


    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
    for batch in loader:
        print(batch.mean(dtype=torch.float))

Right:

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Noisy(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.randn(4) + np.random.normal(0, 0.1)


    loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2)
    for batch in loader:
        print(batch.mean(dtype=torch.float))
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.base.user_code import is_user_file
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.workers import Shares, WorkersWatcher
from surestep.doctor.source.loaders import (
    SourceLoader,
    find_loaders,
    find_training_loops,
    method_of,
    source_of,
)
from surestep.doctor.source.nodes import find_names
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import is_made_by, options_of
from surestep.doctor.source.values import Call, Function, Instance, Value
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

SEVERITY = "warning"
FIX = "Draw from the global generators, or seed a generator with torch.initial_seed() per worker."
_GENERATORS = tuple(
    "numpy.random.default_rng numpy.random.RandomState random.Random torch.Generator".split()
)
_SEEDS = {"np.random.seed": r"np\.random\.", "random.seed": r"(?<!np\.)\brandom\.(?!seed)"}
_FRESH = re.compile(r"initial_seed|get_worker_info|get_state|epoch|time|urandom|base_seed|entropy")
_CHANGES = re.compile(r"get_worker_info|dataset|rng|generator|data\b")
_SEEDERS = frozenset("get_worker_info initial_seed seed manual_seed default_rng".split())
_RANDOM = frozenset("numpy.Generator numpy.RandomState random.Random torch.Generator".split())
_DEPTH = 3  # of datasets and transforms within a dataset


def check(program: Program) -> Iterator[Problem]:
    """Find generators that are copied to workers, and fixed seeds of workers."""
    for trace in program.traces:
        for loader in find_loaders(trace):
            dataset = loader.dataset
            if dataset is None or loader.workers < 1:
                continue
            message = _explain_seed(loader, dataset, trace)
            if not message and not _may_change_dataset(loader):
                message = _explain_copy(loader, dataset)
            if message:
                yield at_event(loader.event, message, workers=loader.workers)


def _may_change_dataset(loader: SourceLoader) -> bool:
    """Return whether a `worker_init_fn` may give the dataset of its worker another generator."""
    function = loader.option("worker_init_fn")
    if isinstance(function, Function):
        return bool(_CHANGES.search(ast.unparse(function.definition)))
    return loader.is_set("worker_init_fn")


def _explain_copy(loader: SourceLoader, dataset: Instance) -> str:
    """Return what is wrong with a generator that the dataset keeps."""
    method = method_of(dataset.cls, "__getitem__")
    text = source_of(dataset.cls)
    if method is None or loader.workers < 2 or re.search(r"worker|\bseed\(|manual_seed\(i", text):
        return ""
    nodes = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    for name in sorted({node.attr for node in nodes if ast.unparse(node.value) == "self"}):
        is_made_once = len(re.findall(rf"self\.{name} = ", text)) == 1
        if is_made_once and _is_generator(dataset.attributes.get(name)):
            return (
                f"Each of the {loader.workers} workers gets a copy of `self.{name}` of "
                f"`{dataset.cls.definition.name}`, so all of them draw the same numbers."
            )
    return ""


def _is_generator(value: Value | None) -> bool:
    made = [
        option.receiver if isinstance(option, Call) and option.name == "manual_seed" else option
        for option in options_of(value)
    ]
    return bool(made) and all(is_made_by(option, *_GENERATORS) for option in made)


def _explain_seed(loader: SourceLoader, dataset: Instance, trace: Trace) -> str:
    """Return what is wrong with how a `worker_init_fn` seeds the global generators."""
    function = loader.option("worker_init_fn")
    if not isinstance(function, Function):
        return ""
    parameters = [arg.arg for arg in function.definition.args.args]
    drawing = source_of(dataset.cls).replace("numpy.random", "np.random")
    for node in ast.walk(function.definition):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        pattern = _SEEDS.get(called.replace("numpy.", "np."))
        if pattern is None or not isinstance(node, ast.Call) or len(node.args) != 1:
            continue
        if method_of(dataset.cls, "__getitem__") is None or not re.search(pattern, drawing):
            continue
        seed = _write_out(node.args[0], function)
        if _FRESH.search(seed):
            return ""
        names = set(re.findall(r"\w+", seed))
        if isinstance(node.args[0], ast.Constant) and loader.workers > 1:
            return f"`{ast.unparse(node)}` makes all workers draw the same numbers."
        if names & set(parameters) and _repeats(loader, trace):
            return f"`{ast.unparse(node)}` makes a worker draw the same numbers in each epoch."
    return ""


def _write_out(seed: ast.expr, function: Function) -> str:
    """Return the source of a seed, and of what its names were assigned in the function."""
    names = find_names(seed)
    text = [ast.unparse(seed)]
    for _ in range(3):
        for node in ast.walk(function.definition):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(names & find_names(target) for target in targets):
                    names |= find_names(node)
                    text.append(ast.unparse(node))
    return "\n".join(text)


def _repeats(loader: SourceLoader, trace: Trace) -> bool:
    """Return whether the workers are started again for each of several epochs."""
    is_started_once = loader.is_set("persistent_workers")
    return not is_started_once and any(len(n) > 1 for n in find_training_loops(trace, loader))


class WorkersShareRandomnessWatcher(WorkersWatcher):
    """Find generators that workers copy, and compare the first batches of the workers."""

    def __init__(self) -> None:
        super().__init__()
        self._copied: dict[tuple[str, str], Shares] = {}

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        super().on_loader(run, loader)
        if loader.num_workers > 1 and not _may_reseed(loader) and not self._copied:
            for owner, name in _find_generators(loader.dataset):
                shares = Shares(run.locate(), run.step + 1, loader.num_workers)
                self._copied.setdefault((owner, name), shares)

    def observe(self, run: Script) -> Iterator[Problem]:
        for (owner, name), shares in self._copied.items():
            yield shares.report(
                f"Each of the {shares.workers} workers got a copy of `self.{name}` of `{owner}`, "
                "so all of them drew the same numbers.",
                {"workers": shares.workers},
            )
        if not self._copied:
            yield from super().observe(run)


def _may_reseed(loader: DataLoader[Any]) -> bool:
    """Return whether a `worker_init_fn` may give the dataset of its worker another generator."""
    if loader.worker_init_fn is None:
        return False
    code = getattr(loader.worker_init_fn, "__code__", None)
    names = () if code is None else (*code.co_names, *code.co_freevars)
    return code is None or any(_CHANGES.search(name) for name in names)


def _find_generators(dataset: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the class and the attribute of each generator that a dataset draws from."""
    attributes = getattr(dataset, "__dict__", {})
    inner = [value for value in attributes.values() if hasattr(value, "__dict__")]
    inner += [entry for value in attributes.values() if type(value) is list for entry in value[:20]]
    for value in inner if depth < _DEPTH else ():
        yield from _find_generators(value, depth + 1)
    names = _names_in_methods(type(dataset))
    if names & _SEEDERS:
        return
    for name, value in attributes.items():
        if name in names and _is_random(value):
            yield type(dataset).__name__, name


def _names_in_methods(cls: type) -> set[str]:
    """Return the names that the methods of a class of the user read, without its constructor."""
    methods = [method for name, method in vars(cls).items() if name != "__init__"]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    return {name for code in codes if is_user_file(code.co_filename) for name in code.co_names}


def _is_random(value: Any) -> bool:
    library = type(value).__module__.partition(".")[0]
    return f"{library}.{type(value).__name__}" in _RANDOM
