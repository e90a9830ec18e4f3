"""The training waits for its data.

A step cannot begin before its batch is loaded. If loading takes longer than training on a batch,
the device is idle for the rest of the time, and a faster device makes nothing faster. The result
is the same.

Data that is sliced in memory is not reported: workers do not make it faster. Nor is the time before
the first log point, in which the workers start. The number of workers that is suggested is the time
to load a batch divided by the time to train on it.

Ignore it if the loading cannot be made cheaper, and no core is free.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark, format_seconds

if TYPE_CHECKING:
    from surestep.doctor.case import Case

SEVERITY = "speed"
FIX = "Raise data.num_workers, or make loading cheaper: decode and resize once, store the result."
_WAIT_SHARE = 0.2  # of the time, above which waiting for data is reported
_HANDOVER_S = 2e-3  # a batch from a worker costs about 1 ms, so faster loading needs none
_FEWEST = 20  # steps


def review(case: Case) -> Iterator[Remark]:
    """Find a run that waits for its data, with the number of workers that would keep up."""
    from surestep.engine.data.sources import InMemory

    seen, plan = case.observed, case.loop.plan
    is_in_memory = isinstance(case.loop.loader.source, InMemory)
    if seen.timed_steps < _FEWEST or is_in_memory or not seen.seconds:
        return
    share = seen.data_wait_s / seen.seconds
    wait_s = seen.data_wait_s / seen.timed_steps
    step_s = (seen.seconds - seen.data_wait_s) / seen.timed_steps
    workers = plan.data_num_workers
    load_s = workers * (step_s + wait_s) if workers else wait_s  # they load a batch each
    if share <= _WAIT_SHARE or load_s < _HANDOVER_S:
        return
    needed = max(workers + 1, math.ceil(load_s / max(step_s, 1e-9) - 1e-6))
    cores = max(1, case.system.cpus // max(1, case.system.launched.local_size))
    fix = f"Set data.num_workers={needed}, which would load as fast as the step trains."
    if needed > cores:
        fix = (
            f"{needed} workers would keep up, and a process has {cores} cores here: make loading "
            "cheaper (decode and resize once, load data into memory), and set "
            f"data.num_workers={cores}."
        )
    yield Remark(
        f"{share:.0%} of the time was spent waiting for data: loading a batch takes "
        f"{format_seconds(load_s)} and its step {format_seconds(step_s)}, with "
        f"data.num_workers={workers}.",
        {
            "share": share,
            "load_s": load_s,
            "step_s": step_s,
            "num_workers": workers,
            "workers_needed": needed,
            "cores": cores,
        },
        fix,
    )


def bad_slow_samples():
    import time

    import torch
    from torch.utils.data import Dataset

    import surestep

    class Rows(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            time.sleep(0.003)  # decodes an image
            return torch.full((4,), index / 64), torch.full((1,), float(index % 5))

    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Rows())
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()


def bad_slow_batches():
    import time

    import torch
    from torch.utils.data import TensorDataset

    import surestep

    def join(samples):
        time.sleep(0.02)  # pads, tokenizes, ...
        return tuple(torch.stack(part) for part in zip(*samples))

    x = torch.randn(64, 4)
    rows = TensorDataset(x, x.sum(1, keepdim=True))
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=rows, collate_fn=join)
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()


def bad_slow_stream():
    import time

    import torch
    from torch.utils.data import IterableDataset

    import surestep

    class Lines(IterableDataset):
        def __iter__(self):
            for index in range(400):
                time.sleep(0.003)  # reads from a server
                yield torch.full((4,), index / 400), torch.full((1,), index / 400)

    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Lines())
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()


def good_in_memory():
    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()


def good_slow_model():
    import time

    import torch
    from torch.utils.data import TensorDataset

    import surestep

    class Slow(torch.nn.Linear):
        def forward(self, x):
            time.sleep(0.02)
            return super().forward(x)

    x = torch.randn(64, 4)
    task = surestep.Task(Slow(4, 1), "mse", train=TensorDataset(x, x.sum(1, keepdim=True)))
    config = surestep.Config(
        max_steps=40, batch_size=8, logging={"every": "5 steps"}, max_grad_norm="off"
    )
    surestep.Trainer(task, config, run="run").fit()


def good_few_steps():
    import time

    import torch
    from torch.utils.data import Dataset

    import surestep

    class Rows(Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            time.sleep(0.003)
            return torch.full((4,), index / 64), torch.full((1,), float(index % 5))

    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Rows())
    config = surestep.Config(max_steps=8, batch_size=8, logging={"every": "1 steps"})
    surestep.Trainer(task, config, run="run").fit()
