"""HF Trainer: its own AdamW, schedule and clipping; logs every 50 steps to memory only."""

import tempfile
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments

from benchmarks.rules import (
    LR,
    MAX_GRAD_NORM,
    PEER_FUSED,
    READ_EVERY,
    WEIGHT_DECAY,
    Stopwatch,
    Trained,
)
from benchmarks.tasks import Task


class Rows(Dataset[dict[str, Tensor]]):
    """The task's rows as the dictionaries that HF Trainer wants."""

    def __init__(self, task: Task) -> None:
        self.inputs, self.targets = task.inputs, task.targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[row], "labels": self.targets[row]}


class WithLoss(nn.Module):
    """The task's model as HF Trainer wants it: it gives its own loss."""

    def __init__(self, task: Task, stopwatch: Stopwatch) -> None:
        super().__init__()
        self.model, self.loss, self.stopwatch = task.build(), task.loss, stopwatch

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.stopwatch.tick()
        return {"loss": self.loss(self.model(inputs), labels)}


def make_arguments(task: Task, total: int, folder: str) -> TrainingArguments:
    """Turn off what costs time and is not asked of the others."""
    return TrainingArguments(
        output_dir=folder,
        max_steps=total,
        per_device_train_batch_size=task.batch_size,
        dataloader_drop_last=True,
        dataloader_pin_memory=task.device == "cuda",
        bf16=task.precision == "bf16",
        optim="adamw_torch_fused" if PEER_FUSED else "adamw_torch",
        learning_rate=LR,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=MAX_GRAD_NORM,
        lr_scheduler_type="cosine",
        warmup_steps=max(1, total // 10),
        logging_steps=READ_EVERY,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=task.device == "cpu",
    )


def train(task: Task, steps: int) -> Trained:
    """Train with HF Trainer for a warm-up and `steps` timed steps."""
    stopwatch = Stopwatch(steps, task.device)
    model = WithLoss(task, stopwatch)
    with tempfile.TemporaryDirectory() as folder:
        arguments = make_arguments(task, stopwatch.total, folder)
        trainer = Trainer(model, arguments, train_dataset=Rows(task))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    logged: list[dict[str, Any]] = trainer.state.log_history
    losses = [float(line["loss"]) for line in logged if "loss" in line]
    prepared: Any = trainer.optimizer
    return Trained(stopwatch, model.model, prepared.optimizer, losses)
