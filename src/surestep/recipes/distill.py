"""A small network learns digits from a few bad labels, and from what a larger one thinks of each.

The teacher is trained on 1,200 images with their right labels, in a loop beforehand. Then it is
frozen, and the student sees 200 of the images, three in ten with a label drawn at random: its loss
is 0.9 of how far it is from the teacher's softened classes, and 0.1 of the cross-entropy with the
labels. The teacher sees the same inputs, in eval mode.

Expected of the 297 images of the test set, over three seeds: an accuracy of 0.953 (0.949 to 0.960).
With labels alone, by `--task.alpha 0`, it is 0.797 (0.791 to 0.808). About 9 seconds of one CPU
core, the teacher included.
"""

from functools import cache

import torch
from torch import nn

import surestep
from surestep.recipes.digits import accuracy, images
from surestep.recipes.finetune import fit

config = surestep.Config(
    epochs=40,
    batch_size=32,
    max_grad_norm=10.0,
    optim=surestep.Optim(name="adamw", lr=3e-3, weight_decay=0.05),
    schedule=surestep.Schedule(name="cosine", warmup="5%"),
    validation=surestep.Validation(every="10 epochs", metric="accuracy", mode="max"),
)


def network(width: int) -> nn.Sequential:
    """Return a convolutional network from images (batch, 1, 8, 8) to logits (batch, 10)."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * width, 10)),
    )


@cache
def train_teacher(width: int, steps: int) -> nn.Module:
    """Return a teacher, trained on 1,200 images with their right labels; no seed changes it."""
    x, y = images()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        teacher = network(width)
        fit(teacher, x[:1200], y[:1200], steps)
    return teacher


def task(
    width: int = 8,
    samples: int = 200,
    wrong: float = 0.3,
    teacher_width: int = 48,
    teacher_steps: int = 300,
    temperature: float = 4.0,
    alpha: float = 0.9,
) -> surestep.Task:
    """Classify digits with a network of few channels, taught by one of many.

    Args:
        width: channels of the student's first convolution.
        samples: images that the student is trained on; the teacher has seen all 1,200.
        wrong: share of their labels that are drawn at random.
        teacher_width: channels of the teacher's.
        teacher_steps: steps that the teacher is trained before.
        temperature: by how much the logits of both are softened.
        alpha: share of what the teacher says in the loss; with 0 only the labels count.
    """
    x, y = images()
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, 10, y.shape, generator=generator)
    labels = torch.where(torch.rand(y.shape, generator=generator) < wrong, drawn, y)
    return surestep.Task(
        model=lambda: network(width),
        teacher=lambda: train_teacher(teacher_width, teacher_steps),
        loss=surestep.losses.distillation(temperature=temperature, alpha=alpha),
        train=(x[:samples], labels[:samples]),
        val=(x[1200:1500], y[1200:1500]),
        test=(x[1500:], y[1500:]),
        metrics={"accuracy": accuracy},
    )
