"""Sixteen more small tasks of `benchmarks.lr_find`, which were held out from its first rule.

Their models, optimizers and schedules differ in kind from those of `benchmarks/lr_tasks.py`. The
data is scikit-learn's digits, wine and breast cancer, and the source of Python's standard library.
"""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from benchmarks.lr_tasks import (
    ADAMW,
    LENGTH,
    OF_ADAMW,
    OF_SGD,
    SGD,
    LrTask,
    Pairs,
    classify,
    digits,
    options,
    predict_characters,
    text,
    train,
)
from benchmarks.small_tasks import perceptron, standardized
from surestep.recipes.chars import ALPHABET, GPT, encode, source_files

MODULES = 6  # of the standard library, whose source is classified


def split_classes(bunch: Any, count: int) -> tuple[Pairs, Pairs]:
    """Return `count` random rows of a table, standardized, with their classes, and the others."""
    order = torch.randperm(len(bunch.data), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(bunch.data, dtype=torch.float32)[order]
    x = (x - x[:count].mean(dim=0)) / x[:count].std(dim=0)
    y = torch.tensor(bunch.target)[order]
    return (x[:count], y[:count]), (x[count:], y[count:])


@cache
def wine() -> tuple[Pairs, Pairs]:
    """Return the rows of scikit-learn's wine, standardized, with their classes; 58 are held out."""
    from sklearn.datasets import load_wine

    return split_classes(load_wine(), 120)


@cache
def noisy_areas() -> tuple[Pairs, Pairs]:
    """Return 29 measurements of each tumour, and the last one with much noise."""
    noise = torch.Generator().manual_seed(0)
    (x, _), (held_out, _) = standardized("cancer")
    y, others = (
        rows[:, -1:] + 0.5 * torch.randn(len(rows), 1, generator=noise) for rows in (x, held_out)
    )
    return (x[:, :-1], y), (held_out[:, :-1], others)


@cache
def turned_digits() -> tuple[Pairs, Pairs]:
    """Return 150 images that are turned by 90 degrees, with their classes, and 300 others."""
    (x, y), (held_out, classes) = digits(samples=150)
    return (x.rot90(dims=(2, 3)), y), (held_out.rot90(dims=(2, 3)), classes)


@cache
def noisy_digits() -> tuple[Pairs, Pairs]:
    """Return images with noise, and the images without."""
    noise = torch.Generator().manual_seed(0)
    (x, _), (held_out, _) = digits()
    (noisy, others) = (one + 0.3 * torch.randn(one.shape, generator=noise) for one in (x, held_out))
    return (noisy, x), (others, held_out)


@cache
def modules() -> tuple[Pairs, Pairs]:
    """Return windows (windows, 64) of source, and which of MODULES files each is from."""
    files = sorted(source_files(), key=lambda file: file.stat().st_size)[-MODULES:]
    tokens = [encode(file.read_text(encoding="utf-8"))[: 250 * 64].view(-1, 64) for file in files]
    x = torch.cat(tokens)
    y = torch.arange(len(files)).repeat_interleave(250)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return (x[order[:1200]], y[order[:1200]]), (x[order[1200:]], y[order[1200:]])


class Residual(nn.Module):
    """Add what layers return to their input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.layers(x)
        return added


class CharLSTM(nn.Module):
    """Predict the next character with two layers: (batch, length) to (batch, length, alphabet)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embed(tokens))[0])
        return logits


class RowGRU(nn.Module):
    """Read an image row by row: (batch, 1, 8, 8) to (batch, 10)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(8, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.gru(images.squeeze(1))[0][:, -1])
        return logits


class PatchAttention(nn.Module):
    """A transformer over the 16 patches of 2 x 2 pixels: (batch, 1, 8, 8) to (batch, 10)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.position = nn.Parameter(torch.zeros(16, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


class Bag(nn.Module):
    """Classify windows by the mean of an embedding of their pairs of characters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pairs = nn.EmbeddingBag(len(ALPHABET) ** 2, width)
        self.head = nn.Linear(width, MODULES)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pairs(len(ALPHABET) * tokens[:, :-1] + tokens[:, 1:]))
        return logits


def residual_perceptron(width: int, blocks: int) -> nn.Sequential:
    """Return a perceptron whose blocks have LayerNorm and a residual connection."""
    hidden = [
        Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        for _ in range(blocks)
    ]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *hidden, nn.Linear(width, 10))


def tanh_perceptron(width: int) -> nn.Sequential:
    """Return a perceptron with three hidden layers and no normalization."""
    sizes = [64, width, width, width]
    hidden = [
        module
        for inputs, outputs in pairwise(sizes)
        for module in (nn.Linear(inputs, outputs), nn.Tanh())
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def batch_norm_perceptron(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return a perceptron with two hidden layers and BatchNorm."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()),
        nn.Linear(width, outputs),
    )


def group_norm_convolutions(width: int) -> nn.Sequential:
    """Return three convolutions with GroupNorm, the last with a stride."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1, stride=2), nn.GroupNorm(4, width), nn.SiLU()),
        *(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.SiLU()),
        *(nn.Conv2d(width, width, 3, padding=1, stride=2), nn.GroupNorm(4, width), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)),
    )


def residual_convolutions(width: int) -> nn.Sequential:
    """Return two residual blocks with BatchNorm."""

    def block() -> Residual:
        return Residual(
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1, stride=2), block(), nn.ReLU(), block(), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)),
    )


def plain_convolutions(width: int) -> nn.Sequential:
    """Return three convolutions without normalization, with pooling and dropout."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2 * width, 2 * width, 2), nn.GELU(), nn.Flatten(), nn.Dropout(0.2)),
        nn.Linear(2 * width, 10),
    )


def denoising_convolutions(width: int) -> nn.Sequential:
    """Return an autoencoder of convolutions: (batch, 1, 8, 8) to logits of the same shape."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1, stride=2), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, padding=1, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(width, width, 2, stride=2), nn.ReLU()),
        nn.ConvTranspose2d(width, 1, 2, stride=2),
    )


@cache
def learn_digits() -> dict[str, Tensor]:
    """Return the weights of the convolutions with GroupNorm that learned the upright digits."""
    task = surestep.Task(group_norm_convolutions(16), nn.CrossEntropyLoss(), digits()[0])
    return train(task, 300)


def fine_tune() -> surestep.Task:
    """Return a task of turned digits, for a network that has learned the upright ones."""
    weights = surestep.InitWeights(learn_digits())
    return classify(lambda: group_norm_convolutions(16), turned_digits(), init=weights)


def smooth_labels() -> surestep.Task:
    """Return a task of classes whose targets are not certain."""
    train, val = digits(samples=400)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return surestep.Task(lambda: plain_convolutions(12), loss, train, val=val)


def measure_areas() -> surestep.Task:
    """Return a task of a number with much noise."""
    train, val = noisy_areas()
    return surestep.Task(
        lambda: nn.Sequential(perceptron(29, 64, 64, 0.1), nn.ReLU(), nn.Linear(64, 1)),
        *(nn.SmoothL1Loss(), train),
        val=val,
    )


def remove_noise() -> surestep.Task:
    """Return a task of images whose noise is removed."""
    train, val = noisy_digits()
    loss = functional.binary_cross_entropy_with_logits
    return surestep.Task(lambda: denoising_convolutions(16), loss, train, val=val)


def describe(
    make: Callable[[], surestep.Task],
    rates: tuple[float, float],
    run: tuple[int, str, int],
    optim: dict[str, Any],
    warmup: str = "0%",
) -> LrTask:
    """Return a task with the options of its run: steps, schedule and batch size."""
    steps, schedule, batch_size = run
    return LrTask(
        make, options(steps, schedule, warmup, **optim) | {"batch_size": batch_size}, rates
    )


OTHER = {
    "residual-mlp-adamw": describe(
        lambda: classify(lambda: residual_perceptron(48, 5), digits(samples=1000)),
        OF_ADAMW,
        (300, "cosine", 32),
        ADAMW | {"weight_decay": 0.05},
        "10%",
    ),
    "tanh-mlp-rmsprop": describe(
        lambda: classify(lambda: tanh_perceptron(64), digits(samples=1000)),
        OF_ADAMW,
        (300, "linear", 32),
        {"name": "rmsprop"},
    ),
    "wine-nadam": describe(
        lambda: classify(lambda: batch_norm_perceptron(13, 24, 3), wine()),
        OF_ADAMW,
        (150, "cosine", 12),
        {"name": "nadam"},
    ),
    "group-norm-nesterov": describe(
        lambda: classify(lambda: group_norm_convolutions(16), digits()),
        OF_SGD,
        (300, "one_cycle", 32),
        SGD | {"nesterov": True},
    ),
    "batch-norm-residual-sgd": describe(
        lambda: classify(lambda: residual_convolutions(12), digits(samples=800)),
        OF_SGD,
        (200, "cosine", 64),
        SGD | {"weight_decay": 5e-4},
    ),
    "plain-conv-adam": describe(
        smooth_labels, OF_ADAMW, (250, "linear", 32), {"name": "adam"}, "10%"
    ),
    "lstm-adamw": describe(
        lambda: predict_characters(lambda: CharLSTM(32), text(30, 60)),
        OF_ADAMW,
        (200, "cosine", 16),
        ADAMW,
        "5%",
    ),
    "row-gru-sgd": describe(
        lambda: classify(lambda: RowGRU(32), digits(samples=800)),
        OF_SGD,
        (400, "linear", 32),
        SGD,
    ),
    "patch-attention-adamw": describe(
        lambda: classify(lambda: PatchAttention(24, 2), digits(samples=1000)),
        OF_ADAMW,
        (200, "cosine", 32),
        ADAMW | {"weight_decay": 0.1},
        "10%",
    ),
    "gpt-muon": describe(
        lambda: predict_characters(lambda: GPT(32, 2, 4, LENGTH), text(100, 130)),
        OF_ADAMW,
        (120, "cosine", 16),
        {"name": "muon", "adjust_lr_fn": "match_rms_adamw"},
    ),
    "noisy-area-adam-constant": describe(
        measure_areas, OF_ADAMW, (300, "constant", 24), {"name": "adam"}
    ),
    "softmax-regression-sgd-constant": describe(
        lambda: classify(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits(samples=400)
        ),
        OF_SGD,
        (400, "constant", 16),
        {"name": "sgd"},
    ),
    "head-only-adamw": describe(
        fine_tune,
        OF_ADAMW,
        (200, "linear", 16),
        {"name": "adamw", "groups": [f"{at}.* freeze" for at in (0, 1, 3, 4, 6, 7)]},
    ),
    "finetune-ten-times-head-adamw": describe(
        fine_tune,
        OF_ADAMW,
        (150, "cosine", 16),
        {"name": "adamw", "groups": ["11.* lr=10x"]},
        "5%",
    ),
    "denoise-adamw": describe(remove_noise, OF_ADAMW, (250, "one_cycle", 32), ADAMW),
    "source-file-adagrad": describe(
        lambda: classify(lambda: Bag(16), modules()),
        (1e-3, 100.0),
        (300, "constant", 32),
        {"name": "adagrad"},
    ),
}
