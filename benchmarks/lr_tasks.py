"""Sixteen small tasks on which `benchmarks.lr_find` compares rules that suggest a learning rate.

The data is scikit-learn's digits, diabetes and breast cancer, and the source of Python's standard
library. A training takes about a second of one CPU core. The rule of surestep was developed on
these tasks and on those of `benchmarks/lr_other_tasks.py`; those of `lr_held_out.py` are held out.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from benchmarks.small_tasks import perceptron, standardized
from surestep.recipes.chars import ALPHABET, GPT, nats, source_files, windows
from surestep.recipes.digits import images
from surestep.recipes.spiral import points

LENGTH = 32  # characters
QUIET: dict[str, Any] = {"logging": surestep.Logging(progress="quiet", every="1000 steps")}

Pairs = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LrTask:
    """A task, the options of its run, and the rates of its grid.

    Attributes:
        make: returns the task; called once for each training.
        config: options of the run, without a learning rate.
        rates: lowest and highest of the grid.
    """

    make: Callable[[], surestep.Task]
    config: dict[str, Any] = field(repr=False)
    rates: tuple[float, float]


@cache
def digits(first: int = 0, last: int = 9, samples: int = 600) -> tuple[Pairs, Pairs]:
    """Return images (samples, 1, 8, 8) of these digits with their classes, and 300 others."""
    x, y = images()
    chosen = (y >= first) & (y <= last)
    x, y = x[chosen], y[chosen] - first
    return (x[:samples], y[:samples]), (x[-300:], y[-300:])


@cache
def text(first: int, last: int) -> tuple[Pairs, Pairs]:
    """Return windows (windows, LENGTH) of these source files with their next characters."""
    x, y = windows(source_files()[first:last], LENGTH)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1500]
    return (x[order[:1200]], y[order[:1200]]), (x[order[1200:]], y[order[1200:]])


class CharGRU(nn.Module):
    """Predict the next character with a GRU: (batch, length) to (batch, length, alphabet)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.gru(self.embed(tokens))[0])
        return logits


def convolutions(width: int, classes: int, *, has_norm: bool) -> nn.Sequential:
    """Return two convolutions with strides and a linear layer for images (batch, 1, 8, 8)."""
    norm: Callable[[], nn.Module] = (lambda: nn.BatchNorm2d(width)) if has_norm else nn.Identity
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, stride=2, padding=1), norm(), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, stride=2, padding=1), norm(), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(4 * width, classes)),
    )


def deep(width: int, layers: int) -> nn.Sequential:
    """Return a perceptron of so many hidden layers for the digits."""
    hidden = [module for _ in range(layers - 1) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, width), nn.ReLU()), *hidden, nn.Linear(width, 10)
    )


@cache
def pretrain(name: str) -> dict[str, Tensor]:
    """Return the weights of the small network that learned the digits 0 to 4, or other text."""
    if name == "digits":
        task = surestep.Task(
            convolutions(16, 5, has_norm=False), nn.CrossEntropyLoss(), digits(0, 4, 400)[0]
        )
    else:
        task = surestep.Task(GPT(32, 2, 2, LENGTH), nats, text(0, 60)[0], items="tokens")
    return train(task, 400)


def train(task: surestep.Task, steps: int) -> dict[str, Tensor]:
    """Return the weights that a task has after some steps."""
    config = surestep.Config(max_steps=steps, batch_size=32, optim=surestep.Optim(lr=3e-3), **QUIET)
    with (
        tempfile.TemporaryDirectory() as folder,
        surestep.prepare(task, config, run=Path(folder) / "run") as session,
    ):
        for _ in session.steps():
            pass
        return {name: value.clone() for name, value in session.model.state_dict().items()}


def classify(
    model: Callable[[], nn.Module], data: tuple[Pairs, Pairs], **more: Any
) -> surestep.Task:
    """Return a task of classes."""
    return surestep.Task(model, nn.CrossEntropyLoss(), data[0], val=data[1], **more)


def predict_characters(
    model: Callable[[], nn.Module], data: tuple[Pairs, Pairs], **more: Any
) -> surestep.Task:
    """Return a task of next characters."""
    return surestep.Task(model, nats, data[0], val=data[1], items="tokens", **more)


def regress(loss: Any) -> surestep.Task:
    """Return a task of the diabetes data, standardized."""
    train, val = standardized("diabetes")
    return surestep.Task(lambda: perceptron(10, 64, 1, 0.0), loss, train, val=val)


def autoencode() -> surestep.Task:
    """Return a task of images that are rebuilt from 16 numbers."""
    (x, _), (held_out, _) = digits()
    pairs, others = (x, x.flatten(1)), (held_out, held_out.flatten(1))
    return surestep.Task(lambda: perceptron(64, 16, 64, 0.0), nn.MSELoss(), pairs, val=others)


def separate_spirals() -> surestep.Task:
    """Return a task of points on three arms."""
    x, y = points(700, noise=0.15)
    return classify(
        lambda: nn.Sequential(
            *(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
        ),
        ((x[:400], y[:400]), (x[400:], y[400:])),
    )


def options(
    steps: int, schedule: str = "cosine", warmup: str = "0%", **optim: Any
) -> dict[str, Any]:
    """Return the options of a run, without its learning rate."""
    return {
        "max_steps": steps,
        "batch_size": 32,
        "optim": optim,
        "schedule": {"name": schedule, "warmup": warmup},
    }


ADAMW: dict[str, Any] = {"name": "adamw", "weight_decay": 0.01}
SGD: dict[str, Any] = {"name": "sgd", "momentum": 0.9}
OF_ADAMW, OF_SGD = (1e-5, 1.0), (1e-4, 10.0)  # rates

FIRST = {
    "mlp-adamw": LrTask(
        lambda: classify(lambda: perceptron(64, 64, 10, 0.1), digits()),
        options(300, **ADAMW),
        OF_ADAMW,
    ),
    "conv-sgd": LrTask(
        lambda: classify(lambda: convolutions(16, 10, has_norm=False), digits()),
        options(300, warmup="5%", **SGD),
        OF_SGD,
    ),
    "gru-adamw": LrTask(
        lambda: predict_characters(lambda: CharGRU(48), text(60, 90)),
        options(250, **ADAMW),
        OF_ADAMW,
    ),
    "diabetes-adamw": LrTask(
        lambda: regress(surestep.losses.huber(delta=1.0)),
        options(300, warmup="5%", **ADAMW | {"weight_decay": 0.1}),
        OF_ADAMW,
    ),
    "finetune-digits-sgd": LrTask(
        lambda: classify(
            lambda: convolutions(16, 5, has_norm=False),
            digits(5, 9, 100),
            init=surestep.InitWeights(pretrain("digits"), skip=["7"]),
        ),
        options(200, **SGD),
        OF_SGD,
    ),
    "autoencoder-adam": LrTask(autoencode, options(300, "constant", name="adam"), OF_ADAMW),
    "cancer-sgd": LrTask(
        lambda: classify(lambda: perceptron(30, 32, 2, 0.0), standardized("cancer")),
        options(200, **SGD),
        OF_SGD,
    ),
    "mlp-adamw-constant": LrTask(
        lambda: classify(lambda: perceptron(64, 64, 10, 0.1), digits()),
        options(900, "constant", **ADAMW),
        OF_ADAMW,
    ),
    "deep-mlp-sgd": LrTask(
        lambda: classify(lambda: deep(64, 5), digits()), options(300, warmup="5%", **SGD), OF_SGD
    ),
    "conv-norm-adamw": LrTask(
        lambda: classify(lambda: convolutions(16, 10, has_norm=True), digits()),
        options(300, "linear", **ADAMW),
        OF_ADAMW,
    ),
    "gpt-adamw": LrTask(
        lambda: predict_characters(lambda: GPT(32, 2, 2, LENGTH), text(60, 90)),
        options(250, warmup="10%", **ADAMW),
        OF_ADAMW,
    ),
    "gpt-adam-constant": LrTask(
        lambda: predict_characters(lambda: GPT(32, 2, 2, LENGTH), text(60, 90)),
        options(250, "constant", warmup="5%", name="adam"),
        OF_ADAMW,
    ),
    "diabetes-sgd": LrTask(lambda: regress(nn.MSELoss()), options(300, **SGD), OF_SGD),
    "finetune-gpt-adamw": LrTask(
        lambda: predict_characters(
            lambda: GPT(32, 2, 2, LENGTH),
            text(60, 90),
            init=surestep.InitWeights(pretrain("text")),
        ),
        options(200, "linear", **ADAMW),
        OF_ADAMW,
    ),
    "spiral-adamw": LrTask(separate_spirals, options(300, warmup="5%", **ADAMW), OF_ADAMW),
    "autoencoder-sgd": LrTask(autoencode, options(300, **SGD), OF_SGD),
}
