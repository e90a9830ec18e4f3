"""One part of the benchmark, in its own process; it prints results as lines of JSON."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import surestep
from benchmarks.contestants import CONTESTANTS
from benchmarks.gpu.parts import LARGE, NAMES, SMALL
from benchmarks.loops.surestep_loop import make_config
from benchmarks.rules import READ_EVERY
from benchmarks.tasks import GPT, TASKS, Task, build_resnet, pictures, sequences, token_loss
from benchmarks.watch import measure_cost
from benchmarks.worker import summarize

MIB = 2**20
FEWEST, MOST = 10, 2000  # timed steps
SYNC_STEPS = 8
Row = Mapping[str, Any]


def make_resnet18() -> Task:
    """Return ResNet-18 with batches that fill a GPU."""
    rows, loss = pictures(4096, size=32), nn.CrossEntropyLoss()
    title = "ResNet-18 on 32x32, batch 256"
    return Task("resnet18", title, build_resnet, loss, "samples", *rows, 256, steps=100)


def build_gpt2() -> nn.Module:
    """Build a GPT of the size of GPT-2 small, for 512 tokens."""
    torch.manual_seed(0)
    return GPT(vocabulary=50257, tokens=512, width=768, heads=12, layers=12)


def make_gpt2() -> Task:
    """Return GPT-2 small with batches of 4,096 tokens."""
    rows, title = sequences(256, 512, 50257), "GPT-2 small, 512 tokens, batch 8"
    return Task("gpt2", title, build_gpt2, token_loss, "tokens", *rows, 8, steps=100)


def make_task(name: str, device: str) -> Task:
    """Return a task on a device; in bf16 on a GPU."""
    make = {**TASKS, "resnet18": make_resnet18, "gpt2": make_gpt2}[name]
    return replace(make(), device=device, precision="bf16" if device == "cuda" else "fp32")


def measure_steps(device: str, seconds: float, *, name: str) -> Iterator[Row]:
    """Time the steps of a contestant on each task."""
    contestant = next(one for one in CONTESTANTS if one.name == name)
    train = import_module(f"benchmarks.loops.{contestant.module}").train
    names = LARGE if device == "cuda" else SMALL
    end = time.monotonic() + seconds
    for task in (make_task(task_name, device) for task_name in names):
        if time.monotonic() > end:
            raise SystemExit(f"no time was left for {task.title}")
        step_s = train(task, FEWEST).stopwatch.step_us / 1e6
        steps = min(MOST, max(FEWEST, round(seconds / len(names) / step_s)))
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found = summarize(task, train(task, steps))
        times = {"us a step": found.step_us, "peak MiB": found.peak_mb, "steps": steps}
        yield {"task": task.title, "loop": contestant.title, **times, "loss": found.final_loss}


def open_session(task: Task, folder: Path, steps: int, **options: Any) -> Any:
    """Return a session of surestep that trains a task."""
    data = TensorDataset(task.inputs, task.targets)
    made = surestep.Task(task.build(), loss=task.loss, items=task.items, train=data)
    config = make_config(task, steps).replace_options(options)
    return surestep.prepare(made, config, run=folder)


def measure_syncs(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Count where the host waits for the GPU between two log points."""
    for task in (make_task(name, device) for name in LARGE):
        with open_session(task, folder / task.name, 2 * READ_EVERY) as session:
            steps = session.steps()
            for _ in range(5):
                next(steps)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                for _ in range(SYNC_STEPS):  # no epoch of a task ends here
                    next(steps)
                torch.cuda.set_sync_debug_mode("default")
            steps.close()
        waits = sum("called a synchronizing" in str(one.message) for one in found)
        yield {"task": task.title, "steps": SYNC_STEPS, "waits": waits}


def measure_resume(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Compare the weights of a run that was stopped and resumed with those of one that was not."""
    task, weights = make_task("mlp", device), []
    for name, stops in (("whole", (30,)), ("resumed", (15, 30))):
        for stop in stops:
            with open_session(task, folder / name, 30, deterministic=True) as session:
                for result in session.steps():
                    if result.step == stop:
                        break
                session.save()
                weights.append(nn.utils.parameters_to_vector(session.model.parameters()).clone())
    yield {"task": task.title, "steps": 30, "bitwise the same": torch.equal(weights[0], weights[2])}


def measure_graphs(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Time steps with and without cuda_graph, and compare the weights."""
    for task in (make_task(name, device) for name in LARGE):
        times, weights = [], []
        for on in (False, True):
            with open_session(task, folder / f"{task.name}-{on}", 60, cuda_graph=on) as session:
                times.append(_time_steps(session, device, warm_up=10))
                weights.append(nn.utils.parameters_to_vector(session.model.parameters()).clone())
        same = torch.equal(*weights)
        found = {"us a step": times[0], "us replayed": times[1], "ratio": times[1] / times[0]}
        yield {"task": task.title, **found, "bitwise the same": same}


def _time_steps(session: Any, device: str, *, warm_up: int) -> float:
    """Take all steps; return the microseconds of one after the warm-up."""
    began, count = 0.0, 0
    for count, _ in enumerate(session.steps(), 1):
        if count == warm_up:
            _wait(device)
            began = time.perf_counter()
    _wait(device)
    return (time.perf_counter() - began) / (count - warm_up) * 1e6


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure_overflow(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Train in fp16 from a loss scale at which the first gradients overflow."""
    task = replace(make_task("mlp", device), precision="fp16")
    with open_session(task, folder, 100, **{"scaler.init_scale": 2.0**40}) as session:
        losses = [float(result.loss) for result in session.steps()]
        counts, progress = session.state.counts, session.state.progress
        skipped, scale = progress.step - progress.steps_taken, session.state.scaler.get_scale()
    found = {"steps": len(losses), "skipped": skipped, "not finite": counts.nonfinite}
    yield {"task": task.title, **found, "scale": scale, "loss": losses[-1]}


def measure_memory(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Train with micro_batch_size="fit" in less memory than the first steps take."""
    task = make_task("gpt2", device)  # without BatchNorm, whose update depends on the micro-batch
    with open_session(task, folder / "first", 6) as session:
        torch.cuda.reset_peak_memory_stats()
        list(session.steps())
    peak = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + (peak - torch.cuda.memory_reserved()) * 2 // 3
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    with open_session(task, folder / "limited", 6, micro_batch_size="fit") as session:
        steps = len(list(session.steps()))
        events = [event for event in session.run.events() if event["event"] == "micro_batch"]
    sizes = " to ".join(str(event["size"]) for event in events)
    yield {"task": task.title, "limit MiB": limit // MIB, "steps": steps, "micro-batches": sizes}


class StepTimes(surestep.Callback):
    """Notes when each step was given to the device."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def on_step(self, state: Any, result: Any) -> None:
        self.ended.append(time.perf_counter())


def measure_saves(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Compare the steps in which a checkpoint is started with the others."""
    every, steps = 20, 100
    for task in (
        make_task(name, device) for name in (LARGE[-1:] if device == "cuda" else SMALL[:1])
    ):
        data, times = TensorDataset(task.inputs, task.targets), StepTimes()
        made = surestep.Task(task.build(), loss=task.loss, items=task.items, train=data)
        options = {"checkpoint.every": f"{every} steps", "validation.every": "off"}
        config = make_config(task, steps).replace_options(options)
        run = folder / task.name
        surestep.Trainer(made, config, run=run, callbacks=[times]).fit()
        ended = times.ended
        gaps = {number: ended[number] - ended[number - 1] for number in range(5, steps)}
        usual = median(gap for number, gap in gaps.items() if number % every)
        added = [gap - usual for number, gap in gaps.items() if not number % every]
        size = sum(path.stat().st_size for path in run.rglob("*.safetensors")) / MIB
        found = {"ms a step": usual * 1e3, "ms added by a save": median(added) * 1e3}
        yield {"task": task.title, **found, "MiB on disk": size}


def measure_watch(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Compare a plain loop with the same one under `surestep watch`."""
    for name in ("mlp", "gpt"):
        usual, found = measure_cost(name, 3, device, seconds / 2 / 6)
        span = f"[{found.low:.3f}, {found.high:.3f}]"
        yield {"task": name, "us a step": usual, "watched, ratio": found.middle, "interval": span}


def measure_tune(device: str, seconds: float, folder: Path) -> Iterator[Row]:
    """Run `surestep tune images`; return its rungs, also if it fails on the way."""
    command = [sys.executable, "-m", "surestep", "tune"]
    if subprocess.run([*command, "--help"], capture_output=True).returncode:
        raise SystemExit("this surestep has no command tune")
    options = ["--minutes", f"{seconds / 60:.2f}", "--allow", "numbers", "--out", str(folder / "t")]
    answer = subprocess.run([*command, "images", *options], capture_output=True, text=True)
    written = folder / "t/tune.json"
    if written.exists():
        yield from read_rungs(json.loads(written.read_text()))
    if answer.returncode:
        raise SystemExit(answer.stderr.strip()[-200:])


def read_rungs(tuned: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rungs of a tune.json, with the run as it is before and the totals after them."""
    if tuned["step_s"] is not None:
        yield {"rung": "as it is", "ms a step": tuned["step_s"] * 1e3}
    for rung in tuned["rungs"]:
        options = ", ".join(f"{name}={value}" for name, value in rung["options"].items())
        times = {} if rung["step_s"] is None else {"ms a step": rung["step_s"][1] * 1e3}
        outcome = ": ".join(filter(None, (rung["outcome"], rung["reason"])))
        measured = {**times, **_show_interval(rung["interval"])}
        yield {"rung": options or rung["knob"], **measured, "outcome": outcome}
    totals = {"kept": tuned["total"], "proposed too": tuned["total_proposed"]}
    for name, total in totals.items():
        if total is not None:
            yield {"rung": f"all that is {name}, of the first", **_show_interval(total["interval"])}


def _show_interval(interval: Mapping[str, float] | None) -> Row:
    if interval is None:
        return {}
    span = f"[{interval['low']:.3f}, {interval['high']:.3f}]"
    return {"ratio": interval["ratio"], "interval": span}


MEASURES: Mapping[str, Callable[..., Iterator[Row]]] = {
    "syncs": measure_syncs,
    "resume": measure_resume,
    "graphs": measure_graphs,
    "overflow": measure_overflow,
    "memory": measure_memory,
    "saves": measure_saves,
    "watch": measure_watch,
    "tune": measure_tune,
}


def find_measure(part: str, folder: Path) -> Callable[[str, float], Iterator[Row]]:
    """Return the function of a part, of the device and the seconds that it may take."""
    if part.startswith("steps."):
        return partial(measure_steps, name=part.removeprefix("steps."))
    return partial(MEASURES[part], folder=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=NAMES)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measure = find_measure(arguments.part, Path(folder))
        for row in measure(arguments.device, arguments.seconds):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
