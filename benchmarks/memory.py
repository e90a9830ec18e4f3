"""Compare the estimated peak of a step with the measured one, beside torch's MemTracker.

python -m benchmarks.memory [CASE ...]    # all: the shipped recipes and four transformers

Each number is from a process of its own. The measured peak is that of torch's allocator on the CPU
over the steps from the second one on; data that a recipe has read before the run does not count.
The estimates are made without a step. torch-preflight is compared if it is installed; it predicts
a GPU, so its CUDA context and fragmentation are left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import surestep
from surestep.config.config import Config
from surestep.engine import private
from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors, tensor_bytes
from surestep.engine.data.batch_loader import make_loader
from surestep.engine.losses.multi import split_heads
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.param_groups import make_param_groups
from surestep.engine.profile.stand_ins import StandIns, fake_tensors
from surestep.engine.profile.workspace import follow_allocations
from surestep.engine.task.task import Task
from surestep.recipes.load import load
from surestep.trainer.memory import estimate_step
from surestep.trainer.planning import PreparedTask, plan_task

CPU = torch.device("cpu")


class Case(NamedTuple):
    """A recipe, and which of its steps are measured."""

    recipe: str
    parameters: dict[str, str]
    first: int = 2
    last: int = 3


TRANSFORMERS = "benchmarks/small_transformers.py"
CASES = {
    **{
        name: Case(name, {})
        for name in ("chars", "digits", "distill", "gan", "imbalanced", "segment", "spiral")
    },
    "tabular": Case("tabular", {}),
    "finetune": Case("finetune", {}, 50, 51),  # all blocks are trained from step 30 on
    "hf": Case("hf", {}, 2, 16),  # batches have different lengths
    **{name: Case(TRANSFORMERS, {"model": name}, 2, 16) for name in ("gpt2", "bert", "t5", "vit")},
}


def open_case(case: Case) -> tuple[Task, Config]:
    """Return the task and the config of a case."""
    recipe = load(case.recipe)
    config = recipe.config.replace_options({"logging.progress": "quiet"})
    return recipe.build(case.parameters, config), config


def measure_peak(task: Task, config: Config, first: int, last: int) -> int:
    """Return the most bytes that torch's allocator of the CPU had in steps `first` to `last`."""
    modules = [part for part in (task.model, task.teacher) if isinstance(part, nn.Module)]
    built = {id(p): p for module in modules for p in (*module.parameters(), *module.buffers())}
    with tempfile.TemporaryDirectory() as folder:
        opened: list[Any] = []

        def begin() -> None:
            opened.append(surestep.prepare(task, config, run=Path(folder) / "run"))
            opened.append(opened[0].steps())
            for _ in islice(opened[1], first - 1):
                pass

        def measured() -> None:
            for _ in islice(opened[1], last - first + 1):
                pass

        before = sum(follow_allocations(begin)) + tensor_bytes(built.values())
        peak = before + max(accumulate(follow_allocations(measured)), default=0)
        opened[0].close()
    return peak


def predict_peak(task: Task, config: Config) -> int:
    """Return surestep's estimate."""
    found = estimate_step(plan_task(task, config))
    assert not found.not_known, found.not_known
    return found.peak


def _in_one_step(task: Task, config: Config) -> tuple[PreparedTask, MicroBatch]:
    planned = plan_task(task, config)
    if task.step is not None:
        raise ValueError("the step is the task's")
    loader = make_loader(
        planned.task.train,
        "train",
        task=planned.task,
        loss=planned.loss,
        plan=planned.plan,
        training=True,
    )
    return planned, loader.first()[1]


def predict_by_mem_tracker(task: Task, config: Config) -> int:
    """Return the estimate of torch's MemTracker, on fake tensors, over two plain steps."""
    tools: Any = import_module("torch.distributed._tools.mem_tracker")
    planned, micro = _in_one_step(task, config)
    model, loss, plan = planned.model, planned.loss, planned.plan
    mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    convert = fake_tensors(mode, CPU)
    parts = [part for part in (model, loss.module, loss.teacher) if part is not None]
    with StandIns([m for part in parts for m in part.modules()], convert).use(), mode:
        model.train()
        args, kwargs, targets = map_tensors((micro.args, micro.kwargs, micro.targets), convert)
        moved = micro._replace(args=args, kwargs=kwargs, targets=targets)
        groups = make_param_groups(model, plan)
        optimizer = build_optimizer(plan, planned.task.optimizer, model, groups)
        tracker = tools.MemTracker()
        tracker.track_external(*parts, optimizer, *flatten_tensors((args, kwargs, targets)))
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                outputs = model(*args, **kwargs)
                for head in split_heads(loss, outputs, moved):
                    value: Any = head.loss.value(head.outputs, head.loss.targets_of(moved))
                    value.backward()
                if plan.max_grad_norm:
                    clip_grad_norm_(model.parameters(), plan.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
    return int(tracker.get_tracker_snapshot("peak")[CPU]["Total"])


def predict_by_preflight(task: Task, config: Config) -> int:
    """Return the estimate of torch-preflight, from the shape of the first input of the model."""
    if find_spec("torch_preflight") is None:
        raise ValueError("not installed")
    preflight: Any = import_module("torch_preflight")
    planned, micro = _in_one_step(task, config)
    model, plan = planned.model, planned.plan
    first = flatten_tensors((micro.args, dict(micro.kwargs)))[0]
    optimizer = build_optimizer(plan, planned.task.optimizer, model, make_param_groups(model, plan))
    guard = preflight.VRAMGuard(
        model, optimizer=optimizer, batch_size=len(first), example_input=first[:1]
    )
    if guard.activation_source == "unknown":
        raise ValueError("no activations")
    with guard:
        found = guard.report.breakdown
    return int(found.total - found.cuda_context - found.fragmentation)


PREDICTIONS: dict[str, Callable[[Task, Config], int]] = {
    "surestep": predict_peak,
    "MemTracker": predict_by_mem_tracker,
    "torch-preflight": predict_by_preflight,
}


def run_alone(name: str, *what: str) -> list[int] | None:
    """Return numbers of a case, computed in a process of their own; None if they cannot be."""
    command = [sys.executable, "-m", "benchmarks.memory", name, "--alone", *what]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(name, *what, done.stderr.strip().splitlines()[-1][:200], file=sys.stderr)
        return None
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print the table of all cases, or one number of a case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    kinds = ("measured", *PREDICTIONS)
    parser.add_argument("--alone", choices=kinds, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        case = CASES[options.cases[0]]
        measure = partial(measure_peak, first=case.first, last=case.last)
        compute: dict[str, Callable[[Task, Config], int]] = {"measured": measure, **PREDICTIONS}
        print(json.dumps([compute[what](*open_case(case)) for what in options.alone]))
        return
    print("| recipe | measured |", *(f"{name} |" for name in PREDICTIONS))
    print("|---|---|" + "---|" * len(PREDICTIONS))
    for name in options.cases or CASES:
        measured = run_alone(name, "measured")
        assert measured is not None
        cells = [f"{measured[0] / 1e6:.2f} MB"]
        for what in PREDICTIONS:
            found = run_alone(name, what)
            cells.append("-" if found is None else f"{100 * (found[0] / measured[0] - 1):+.1f}%")
        print(f"| {name} |", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
