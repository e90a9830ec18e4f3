"""Fabric: a custom loop with Fabric's methods."""

from lightning.fabric import Fabric
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.loops.peer import make_loader, make_optimizer
from benchmarks.rules import MAX_GRAD_NORM, READ_EVERY, Stopwatch, Trained, lr_factor
from benchmarks.tasks import Task


def train(task: Task, steps: int) -> Trained:
    """Train with Fabric for a warm-up and `steps` timed steps."""
    stopwatch, losses = Stopwatch(steps), []
    fabric = Fabric(accelerator="cpu", devices=1)
    net = task.build()
    model, optimizer = fabric.setup(net, make_optimizer(net.parameters()))
    loader = fabric.setup_dataloaders(make_loader(task))
    scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, stopwatch.total))
    model.train()
    step = 0
    while step < stopwatch.total:
        for inputs, targets in loader:
            stopwatch.tick()
            optimizer.zero_grad()
            loss = task.loss(model(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=MAX_GRAD_NORM)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % READ_EVERY == 0:
                losses.append(loss.item())
            if step == stopwatch.total:
                break
    return Trained(stopwatch, net, optimizer.optimizer, losses)
