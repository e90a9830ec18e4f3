"""HF Trainer: `train(resume_from_checkpoint=get_last_checkpoint(folder))`, as its examples do.

Source: https://github.com/huggingface/transformers/blob/main/examples/pytorch/text-classification/run_glue.py
"""

from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from benchmarks.reliability.job import BATCH, LR, SAVE_EVERY, SEED, STEPS, Job
from benchmarks.reliability.reporter import Reporter


class Named(Dataset[dict[str, Tensor]]):
    """The rows as dictionaries, which HF Trainer needs."""

    def __init__(self, job: Job) -> None:
        self.rows = job.data()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        inputs, targets = self.rows[row]
        return {"inputs": inputs, "labels": targets}


class WithLoss(nn.Module):
    """The model with its loss, which HF Trainer needs."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model, self.loss = job.model(), nn.CrossEntropyLoss()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self.model(inputs), labels)}


class Watch(TrainerCallback):
    """Reports the loaded state and each step."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.reporter.loaded(state.global_step, kwargs["model"], _plain(kwargs["optimizer"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.reporter.step(state.global_step, kwargs["model"], _plain(kwargs["optimizer"]))


def _plain(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)


class ReportingTrainer(Trainer):
    """A Trainer that reports its saves."""

    reporter: Reporter

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with self.reporter.saving():
            return super()._save_checkpoint(*args, **kwargs)


def train(job: Job, reporter: Reporter) -> None:
    """Resume from the folder and train to the end."""
    arguments = TrainingArguments(
        output_dir=str(job.folder),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=LR,
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        save_total_limit=2,
        seed=SEED,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=True,
    )
    trainer = ReportingTrainer(WithLoss(job), arguments, train_dataset=Named(job))
    trainer.reporter = reporter
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Watch(reporter))
    last = get_last_checkpoint(str(job.folder)) if job.folder.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
