"""The plain loop: what people write after reading the PyTorch tutorials. It is 1.00."""

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.rules import (
    LR,
    MAX_GRAD_NORM,
    READ_EVERY,
    WEIGHT_DECAY,
    Stopwatch,
    Trained,
    lr_factor,
)
from benchmarks.tasks import Task


def train(task: Task, steps: int) -> Trained:
    """Train in the usual way for a warm-up and `steps` timed steps."""
    stopwatch, losses = Stopwatch(steps, task.device), []
    model = task.build().to(task.device)
    dataset = TensorDataset(task.inputs, task.targets)
    loader = DataLoader(dataset, batch_size=task.batch_size, shuffle=True, drop_last=True)
    autocast = task.autocast()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    scheduler = LambdaLR(optimizer, lambda step: lr_factor(step, stopwatch.total))
    model.train()
    step = 0
    while step < stopwatch.total:
        for inputs, targets in loader:
            stopwatch.tick()
            inputs, targets = task.place(inputs, targets)
            optimizer.zero_grad()
            with autocast:
                loss = task.loss(model(inputs), targets)
            loss.backward()
            clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % READ_EVERY == 0:
                losses.append(loss.item())
            if step == stopwatch.total:
                break
    return Trained(stopwatch, model, optimizer, losses)
