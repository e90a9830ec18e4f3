"""Time a step of surestep on several ranks against hand-written DDP loops, in one run.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp
torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp --rounds 5 --tasks mlp

All loops run in the same processes, one after another in a random order each round, with freed
memory retained. Wall time is measured, and the processor time of the training thread, which
excludes other programs and the time that a rank waits for the others.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import surestep
from benchmarks.intervals import ratio
from benchmarks.loops.fast_by_hand import Guard, clip, keep_memory
from benchmarks.loops.surestep_loop import make_config
from benchmarks.rules import LR, MAX_GRAD_NORM, READ_EVERY, WEIGHT_DECAY, lr_factor
from benchmarks.tasks import TASKS, Task

TOTAL = 10**6  # steps of the schedule, which no run completes
STEPS = {"mlp": 150, "conv": 60, "wide_conv": 20, "gpt": 12}  # of one measurement
Steps = Generator[None, None, None]


def plain(task: Task) -> Steps:
    """Train as PyTorch's tutorials do: DistributedSampler, DataLoader, DDP."""
    model = DistributedDataParallel(task.build(), gradient_as_bucket_view=True)
    dataset = TensorDataset(task.inputs, task.targets)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, shuffle=True)
    share = task.batch_size // dist.get_world_size()
    loader = DataLoader(dataset, batch_size=share, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, TOTAL))
    for step, (inputs, targets) in enumerate(_endless(loader, sampler), 1):
        optimizer.zero_grad()
        loss = task.loss(model(inputs), targets)
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        scheduler.step()
        if step % READ_EVERY == 0:
            _read(loss.detach())
        yield


def _endless(
    loader: DataLoader[tuple[Tensor, ...]], sampler: DistributedSampler[tuple[Tensor, ...]]
) -> Iterator[tuple[Tensor, ...]]:
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def fast(task: Task) -> Steps:
    """Train with the optimizations and the guard of `fast_by_hand`."""
    model = DistributedDataParallel(task.build(), gradient_as_bucket_view=True)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=WEIGHT_DECAY, fused=True)
    guard = Guard(optimizer)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    share, step = task.batch_size // ranks, 0
    for epoch in range(TOTAL):
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(task.inputs), generator=generator)
        for first in range(0, len(order) - task.batch_size + 1, task.batch_size):
            rows = order[first + rank * share : first + (rank + 1) * share]
            inputs, targets = task.inputs.index_select(0, rows), task.targets.index_select(0, rows)
            for parameter in parameters:
                parameter.grad = None
            loss = task.loss(model(inputs), targets)
            loss.backward()
            norm = clip([p.grad for p in parameters if p.grad is not None])
            guard.watch(loss.detach(), norm)
            optimizer.param_groups[0]["lr"] = LR * lr_factor(step, TOTAL)
            optimizer.step()
            step += 1
            if step % READ_EVERY == 0:
                _read(loss.detach())
                _read(guard.found_inf)
            yield


def _read(loss: Tensor) -> float:
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def ours(task: Task) -> Steps:
    """Train with surestep's defaults, as `benchmarks.run` does."""
    task_to_train = surestep.Task(
        model=task.build(),
        loss=task.loss,
        items=task.items,
        train=TensorDataset(task.inputs, task.targets),
    )
    with tempfile.TemporaryDirectory() as folder:
        folders = [folder]
        dist.broadcast_object_list(folders)  # that of rank 0
        run = Path(folders[0]) / "run"
        with surestep.prepare(task_to_train, make_config(task, TOTAL), run=run) as session:
            for _ in session.steps():
                yield


LOOPS: dict[str, Callable[[Task], Steps]] = {"plain": plain, "fast": fast, "surestep": ours}


def time_steps(steps: Steps, count: int) -> tuple[float, float]:
    """Return the seconds of a step on all ranks, and the processor seconds of this thread."""
    dist.barrier()
    start, used = time.perf_counter(), time.thread_time()
    for _ in range(count):
        next(steps)
    used = time.thread_time() - used
    dist.barrier()
    return (time.perf_counter() - start) / count, used / count


def measure(name: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Time all loops on a task, in a random order each round."""
    task = TASKS[name]()
    loops = {title: loop(task) for title, loop in LOOPS.items()}
    times: dict[str, list[tuple[float, float]]] = {title: [] for title in loops}
    order = random.Random(0)
    for steps in loops.values():
        time_steps(steps, STEPS[name])
    for _ in range(rounds):
        for title in order.sample(list(loops), len(loops)):
            times[title].append(time_steps(loops[title], STEPS[name]))
    for steps in loops.values():
        steps.close()
    return times


def main() -> None:
    """Print a row for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tasks", default=",".join(STEPS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    dist.init_process_group("gloo")
    for name in arguments.tasks.split(","):
        times = measure(name, arguments.rounds)
        if os.environ["RANK"] == "0":
            print(_row(name, times), flush=True)
    dist.destroy_process_group()


def _row(name: str, times: dict[str, list[tuple[float, float]]]) -> str:
    cells = []
    for clock in (0, 1):  # wall time, then processor time
        seconds = {title: [pair[clock] for pair in rounds] for title, rounds in times.items()}
        cells += [f"{statistics.median(s) * 1e6:,.0f} us" for s in seconds.values()]
        for other in ("plain", "fast"):
            interval = ratio(seconds["surestep"], seconds[other])
            cells.append(f"{interval.middle:.3f} ({interval.low:.3f} to {interval.high:.3f})")
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
