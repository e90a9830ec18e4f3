"""Time what surestep sends with the gradients of DDP, in one process and without its step.

python -m benchmarks.ddp_message [--rounds N]

Processor time of the training thread for a forward and backward pass of the small MLP under DDP, on
one rank: alone, and with the parameter whose gradient has the loss, the items and the requests.
Both are taken in turn, in a random order each round.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.tasks import TASKS
from surestep.engine.parallel.ddp import PiggybackModule, PiggybackScalars

STEPS = 60  # of one measurement
REPORTED = (0.0, 1.0)  # requests and the clock


def make_pass(sends: bool) -> Callable[[], None]:
    """Return a function that goes forward and backward once."""
    task = TASKS["mlp"]()
    half = task.batch_size // 2
    inputs, targets = task.inputs[:half], task.targets[:half]
    torch.manual_seed(0)
    model = task.build()
    message = None
    if sends:
        model = PiggybackModule(model, len(REPORTED))
        message = PiggybackScalars(model.scalars, ranks=1)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    parameters, start = list(model.parameters()), torch.tensor(1 / half)

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        loss = task.loss(wrapped(inputs), targets)
        if message is None:
            torch.autograd.backward((loss,), (start,))
            return
        message.send(float(half), *REPORTED)
        root, values = message.root(loss)
        torch.autograd.backward((loss, root), (start, values))
        message.receive()
        message.loss_sum()

    return run


def main() -> None:
    """Print the time of each, and what the message adds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    passes = {"DDP alone": make_pass(sends=False), "with the message": make_pass(sends=True)}
    times: dict[str, list[float]] = {name: [] for name in passes}
    draw = random.Random(0)
    for number in range(rounds + 1):
        for name in draw.sample(list(passes), len(passes)):
            begin = time.thread_time()
            for _ in range(STEPS):
                passes[name]()
            if number:  # the first round warms up
                times[name].append(1e6 * (time.thread_time() - begin) / STEPS)
    alone, sent = times.values()
    for name, found in times.items():
        print(f"{name}: {statistics.median(found):.0f} us, at least {min(found):.0f}")
    added = [b - a for a, b in zip(alone, sent, strict=True)]
    print(f"the message adds {statistics.median(added):.0f} us (median of {rounds} rounds)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
