"""Lightning: `ModelCheckpoint(save_last=True)` and `fit(ckpt_path="last")`.

The loader is torchdata's StatefulDataLoader, which its documentation names for resuming in the
middle of an epoch; everything is seeded by `seed_everything(workers=True)`.

Source: https://lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html
"""

import logging
import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.optim import AdamW
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.reliability.job import BATCH, LR, SAVE_EVERY, SEED, STEPS, Job
from benchmarks.reliability.reporter import Reporter


class Module(LightningModule):
    """The job as a LightningModule."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model, self.loss = job.model(), nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss: Tensor = self.loss(self.model(inputs), targets)
        return loss

    def configure_optimizers(self) -> AdamW:
        return AdamW(self.parameters(), lr=LR)


class Watch(Callback):
    """Reports the loaded state and each step."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.reporter.loaded(trainer.global_step, pl_module.model, trainer.optimizers[0])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.reporter.step(trainer.global_step, pl_module.model, trainer.optimizers[0])


class ReportingTrainer(Trainer):
    """A Trainer that reports its saves."""

    reporter: Reporter

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self.reporter.saving():
            super().save_checkpoint(*args, **kwargs)


def train(job: Job, reporter: Reporter) -> None:
    """Resume from the folder and train to the end."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    seed_everything(SEED, workers=True, verbose=False)
    saving = ModelCheckpoint(
        dirpath=job.folder,
        every_n_train_steps=SAVE_EVERY,
        save_top_k=2,
        monitor="step",
        mode="max",
        save_last=True,
    )
    trainer = ReportingTrainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        max_epochs=-1,
        default_root_dir=job.folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Watch(reporter), saving],
    )
    trainer.reporter = reporter
    loader = StatefulDataLoader(job.data(), BATCH, shuffle=True)
    trainer.fit(Module(job), loader, ckpt_path="last")
