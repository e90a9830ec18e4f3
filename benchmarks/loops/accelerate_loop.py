"""Accelerate: a custom loop over prepared objects."""

from accelerate import Accelerator
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.loops.peer import make_loader, make_optimizer
from benchmarks.rules import MAX_GRAD_NORM, READ_EVERY, Stopwatch, Trained, lr_factor
from benchmarks.tasks import Task


def train(task: Task, steps: int) -> Trained:
    """Train with Accelerate for a warm-up and `steps` timed steps.

    No `accelerator.accumulate`: nothing is accumulated and the context has a price.
    """
    stopwatch, losses = Stopwatch(steps, task.device), []
    precision = "bf16" if task.precision == "bf16" else "no"
    accelerator = Accelerator(cpu=task.device == "cpu", mixed_precision=precision)
    net = task.build()
    plain = make_optimizer(net.parameters())
    schedule = LambdaLR(plain, lambda step: lr_factor(step, stopwatch.total))
    prepared = accelerator.prepare(net, plain, make_loader(task), schedule)
    model, optimizer, loader, scheduler = prepared
    model.train()
    step = 0
    while step < stopwatch.total:
        for inputs, targets in loader:
            stopwatch.tick()
            optimizer.zero_grad()
            with accelerator.autocast():
                loss = task.loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % READ_EVERY == 0:
                losses.append(loss.item())
            if step == stopwatch.total:
                break
    return Trained(stopwatch, net, plain, losses)
