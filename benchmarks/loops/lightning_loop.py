"""Lightning: `Trainer(barebones=True).fit`, every optional cost turned off.

`self.log` would cost it more, and `barebones` forbids it, so the loss is read by hand.
"""

import logging
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.loops.peer import make_loader, make_optimizer
from benchmarks.rules import MAX_GRAD_NORM, READ_EVERY, Stopwatch, Trained, lr_factor
from benchmarks.tasks import Task


class Module(LightningModule):
    """The task as Lightning wants it."""

    def __init__(self, task: Task, stopwatch: Stopwatch) -> None:
        super().__init__()
        self.task, self.stopwatch = task, stopwatch
        self.model = task.build()
        self.losses: list[float] = []
        self.steps = 0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.stopwatch.tick()
        inputs, targets = batch
        loss = self.task.loss(self.model(inputs), targets)
        self.steps += 1
        if self.steps % READ_EVERY == 0:
            self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.parameters())
        scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, self.stopwatch.total))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def train(task: Task, steps: int) -> Trained:
    """Train with Lightning for a warm-up and `steps` timed steps."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    stopwatch = Stopwatch(steps, task.device)
    module = Module(task, stopwatch)
    trainer = Trainer(
        accelerator=task.device,
        precision="bf16-mixed" if task.precision == "bf16" else "32-true",
        devices=1,
        max_epochs=-1,
        max_steps=stopwatch.total,
        gradient_clip_val=MAX_GRAD_NORM,
        barebones=True,
    )
    trainer.fit(module, make_loader(task))
    return Trained(stopwatch, module.model, trainer.optimizers[0], module.losses)
