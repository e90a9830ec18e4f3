"""Accelerate: `save_state` with automatic names, `load_state` and `skip_first_batches`.

With `use_seedable_sampler`, which its documentation names for the same order after a resume, and
a custom object for the step, by `register_for_checkpointing`.

Source: https://huggingface.co/docs/accelerate/usage_guides/checkpoint
"""

import logging

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader

from benchmarks.reliability.job import BATCH, LR, SAVE_EVERY, SEED, STEPS, Job
from benchmarks.reliability.reporter import Reporter


class Progress:
    """The step of the run."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        """Return the state to save."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Load a saved state."""
        self.step = state["step"]


def train(job: Job, reporter: Reporter) -> None:
    """Resume from the folder and train to the end."""
    logging.disable()
    set_seed(SEED)
    project = ProjectConfiguration(str(job.folder), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(
        cpu=True,
        project_config=project,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    net, loss_of, progress = job.model(), nn.CrossEntropyLoss(), Progress()
    plain = AdamW(net.parameters(), lr=LR)
    loader = DataLoader(job.data(), BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, plain, loader)
    accelerator.register_for_checkpointing(progress)
    folders = job.folder.glob("checkpoints/checkpoint_*")
    saved = sorted(int(folder.name.split("_")[1]) for folder in folders)
    if saved:
        accelerator.load_state()
        project.iteration = saved[-1] + 1
    reporter.loaded(progress.step, net, plain)
    model.train()
    while progress.step < STEPS:
        epoch, done = divmod(progress.step, len(loader))
        loader.set_epoch(epoch)
        for inputs, targets in skip_first_batches(loader, done) if done else loader:
            loss: torch.Tensor = loss_of(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            reporter.step(progress.step, net, plain)
            if progress.step % SAVE_EVERY == 0:
                with reporter.saving():
                    accelerator.save_state()
            if progress.step == STEPS:
                break
