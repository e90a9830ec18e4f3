"""Ignite: a process function under an Engine, with one handler that reads the loss."""

from typing import Any

from ignite.engine import Engine, Events
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.loops.peer import make_loader, make_optimizer
from benchmarks.rules import MAX_GRAD_NORM, READ_EVERY, Stopwatch, Trained, lr_factor
from benchmarks.tasks import Task


def train(task: Task, steps: int) -> Trained:
    """Train with Ignite for a warm-up and `steps` timed steps.

    A function of our own and not `create_supervised_trainer`: that one cannot clip, and reads
    the loss at every step.
    """
    stopwatch, losses = Stopwatch(steps), []
    model = task.build()
    optimizer = make_optimizer(model.parameters())
    scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, stopwatch.total))
    model.train()

    def train_step(engine: Engine, batch: tuple[Tensor, Tensor]) -> Tensor:
        stopwatch.tick()
        inputs, targets = batch
        optimizer.zero_grad()
        loss = task.loss(model(inputs), targets)
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        scheduler.step()
        return loss.detach()

    def read_loss(engine: Engine) -> None:
        output: Any = engine.state.output
        losses.append(output.item())

    trainer = Engine(train_step)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=READ_EVERY), read_loss)
    trainer.run(make_loader(task), max_iters=stopwatch.total)
    return Trained(stopwatch, model, optimizer, losses)
