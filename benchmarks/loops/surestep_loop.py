"""surestep with its defaults: clipping, schedule, guard and events file are on."""

import json
import tempfile
from pathlib import Path

from torch.utils.data import TensorDataset

import surestep
from benchmarks.rules import LR, READ_EVERY, WEIGHT_DECAY, Stopwatch, Trained
from benchmarks.tasks import Task

NEVER = "1000000 steps"


def make_config(task: Task, total: int) -> surestep.Config:
    """Return the options of the comparison; no contestant shows progress or saves checkpoints."""
    return surestep.Config.from_options(
        {
            "max_steps": total,
            "batch_size": task.batch_size,
            "device": task.device,
            "precision": task.precision,
            "optim.name": "adamw",
            "optim.lr": LR,
            "optim.weight_decay": WEIGHT_DECAY,
            "schedule.name": "cosine",
            "schedule.warmup": "10%",
            "checkpoint.every": NEVER,
            "logging.every": f"{READ_EVERY} steps",
            "logging.progress": "quiet",
        }
    )


def read_losses(events: Path) -> list[float]:
    """List the losses at which the run looked: every 50 steps, and at each end of an epoch."""
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return [line["loss"][-1] for line in lines if line["event"] == "steps"]


def train(task: Task, steps: int) -> Trained:
    """Train with surestep for a warm-up and `steps` timed steps."""
    stopwatch = Stopwatch(steps, task.device)
    model = task.build()
    task_to_train = surestep.Task(
        model=model,
        loss=task.loss,
        items=task.items,
        train=TensorDataset(task.inputs, task.targets),
    )
    with tempfile.TemporaryDirectory() as folder:
        session = surestep.prepare(task_to_train, make_config(task, stopwatch.total), run=folder)
        for _ in session.steps():
            stopwatch.tick()
        losses = read_losses(Path(folder) / "events.jsonl")
    return Trained(stopwatch, model, session.optimizer, losses)
