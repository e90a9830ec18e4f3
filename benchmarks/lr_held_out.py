"""Twenty small tasks on which no rule of surestep was developed; `benchmarks.lr_find` has them.

They were written before the rule that they evaluate. Their models, losses, optimizers and schedules
differ in kind from those of `lr_tasks.py` and `lr_other_tasks.py`. The data is scikit-learn's
digits, iris, wine, diabetes and breast cancer, the source of Python's standard library, and
functions.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

import surestep
from benchmarks.lr_other_tasks import (
    RowGRU,
    describe,
    residual_perceptron,
    split_classes,
    tanh_perceptron,
    turned_digits,
    wine,
)
from benchmarks.lr_tasks import (
    ADAMW,
    LENGTH,
    OF_ADAMW,
    OF_SGD,
    SGD,
    Pairs,
    classify,
    digits,
    predict_characters,
    text,
    train,
)
from benchmarks.small_tasks import perceptron, standardized
from surestep.recipes.chars import ALPHABET, GPT


def draw(seed: int) -> torch.Generator:
    """Return a separate generator for data that is drawn."""
    return torch.Generator().manual_seed(seed)


@cache
def iris() -> tuple[Pairs, Pairs]:
    """Return the rows of scikit-learn's iris, standardized, with their classes; 50 are held out."""
    from sklearn.datasets import load_iris

    return split_classes(load_iris(), 100)


@cache
def waves() -> tuple[Pairs, Pairs]:
    """Return points of [-1, 1] with the value of a sum of three sines there."""
    x = 2 * torch.rand(700, 1, generator=draw(0)) - 1
    y = torch.sin(3 * x) + 0.5 * torch.sin(8 * x + 1) + 0.3 * torch.sin(15 * x)
    return (x[:400], y[:400]), (x[400:], y[400:])


@cache
def moons() -> tuple[Pairs, Pairs]:
    """Return points on two half circles with noise, and on which of them they are."""
    angle = torch.pi * torch.rand(600, generator=draw(0))
    which = torch.arange(600) % 2
    x = torch.stack([angle.cos() + which, angle.sin() * (1 - 2 * which) + 0.5 * which], 1)
    x = x + 0.15 * torch.randn(600, 2, generator=draw(1))
    return (x[:300], which[:300]), (x[300:], which[300:])


@cache
def mislabelled_digits() -> tuple[Pairs, Pairs]:
    """Return images of which a fifth has a random class, and others with the right one."""
    (x, y), held_out = digits(samples=1000)
    is_wrong = torch.rand(len(y), generator=draw(0)) < 0.2
    return (x, torch.where(is_wrong, torch.randint(10, y.shape, generator=draw(1)), y)), held_out


@cache
def properties() -> tuple[Pairs, Pairs]:
    """Return images, and of each whether its digit is even, above 4, prime, a multiple of 3."""
    table = torch.tensor([[n % 2 == 0, n > 4, n in (2, 3, 5, 7), n % 3 == 0] for n in range(10)])
    (x, y), (held_out, classes) = digits(samples=800)
    return (x, table[y].float()), (held_out, table[classes].float())


@cache
def halves() -> tuple[Pairs, Pairs]:
    """Return the upper half of images, and the lower one."""
    (x, _), (held_out, _) = digits(samples=1000)
    return (x[:, :, :4], x[:, :, 4:]), (held_out[:, :, :4], held_out[:, :, 4:])


@cache
def sums() -> tuple[Pairs, Pairs]:
    """Return sequences (samples, 12, 2) of numbers and marks, and the sum of the two marked."""
    numbers = torch.rand(1500, 12, generator=draw(0))
    marked = torch.rand(1500, 12, generator=draw(1)).argsort(1)[:, :2]
    marks = torch.zeros(1500, 12).scatter(1, marked, 1.0)
    x, y = torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


class CausalConvolutions(nn.Module):
    """Predict the next character with dilated convolutions over those before it."""

    dilations = (1, 2, 4)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 2, dilation=steps) for steps in self.dilations
        )
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).transpose(1, 2)
        for layer, steps in zip(self.layers, self.dilations, strict=True):
            past = nn.functional.pad(x, (steps, 0))
            x = x + layer(past).relu()
        logits: Tensor = self.head(x.transpose(1, 2))
        return logits


class Mixer(nn.Module):
    """Mix the rows of an image, then its columns: (batch, 1, 8, 8) to (batch, 10)."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.rows = nn.ModuleList(perceptron_of(8, 16) for _ in range(blocks))
        self.columns = nn.ModuleList(perceptron_of(width, 2 * width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images.squeeze(1))
        for rows, columns in zip(self.rows, self.columns, strict=True):
            x = x + rows(x.transpose(1, 2)).transpose(1, 2)
            x = x + columns(x)
        logits: Tensor = self.head(x.mean(dim=1))
        return logits


class LastState(nn.Module):
    """Read a sequence (batch, length, inputs) with an RNN; return what the last state says."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(inputs, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.rnn(x)[0][:, -1])
        return outputs


class Factors(nn.Module):
    """Predict the next character from the last two, by one embedding of each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.last = nn.Embedding(len(ALPHABET), width)
        self.before = nn.Embedding(len(ALPHABET), width)
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        before = nn.functional.pad(tokens[:, :-1], (1, 0))
        logits: Tensor = self.head(self.last(tokens) + self.before(before))
        return logits


def perceptron_of(inputs: int, width: int) -> nn.Sequential:
    """Return a block that normalizes, and returns as many numbers as it gets."""
    return nn.Sequential(
        nn.LayerNorm(inputs), nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, inputs)
    )


def separable_convolutions(width: int) -> nn.Sequential:
    """Return convolutions by channel and by pixel, with BatchNorm, for images (batch, 1, 8, 8)."""

    def block() -> list[nn.Module]:
        return [
            *(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),),
            *(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()),
        ]

    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)),
        *(nn.Hardswish(), *block(), *block(), *block()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)),
    )


def dense_half() -> nn.Sequential:
    """Return a perceptron from the upper half of an image to the lower one."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(32, 96), nn.LeakyReLU(), nn.Linear(96, 96), nn.LeakyReLU()),
        *(nn.Linear(96, 32), nn.Unflatten(1, (1, 4, 8))),
    )


def smooth(width: int, hidden: int) -> nn.Sequential:
    """Return a perceptron with SiLU for a function of one number."""
    inner = [module for _ in range(hidden) for module in (nn.Linear(width, width), nn.SiLU())]
    return nn.Sequential(nn.Linear(1, width), nn.SiLU(), *inner, nn.Linear(width, 1))


@cache
def learn_rows() -> dict[str, Tensor]:
    """Return the weights of a GRU that learned the first digits."""
    return train(classify(lambda: RowGRU(32), digits()), 300)


def measure_radius() -> surestep.Task:
    """Return a task of the first measurement of a tumour, by the 29 others, in absolute errors."""
    (x, _), (held_out, _) = standardized("cancer")
    return surestep.Task(
        lambda: tanh_regression(29),
        nn.L1Loss(),
        (x[:, 1:], x[:, :1]),
        val=(held_out[:, 1:], held_out[:, :1]),
    )


def tanh_regression(inputs: int) -> nn.Sequential:
    """Return a perceptron with two hidden layers for one number."""
    return nn.Sequential(
        *(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    )


def regress_on(
    model: Callable[[], nn.Module], loss: nn.Module, data: tuple[Pairs, Pairs]
) -> surestep.Task:
    """Return a task of numbers."""
    return surestep.Task(model, loss, data[0], val=data[1])


HELD_OUT = {
    "iris-adamax": describe(
        lambda: classify(lambda: perceptron(4, 16, 3, 0.0), iris()),
        OF_ADAMW,
        (200, "cosine", 10),
        {"name": "adamax"},
    ),
    "waves-adam-constant": describe(
        lambda: regress_on(lambda: smooth(48, 1), nn.MSELoss(), waves()),
        OF_ADAMW,
        (400, "constant", 32),
        {"name": "adam"},
    ),
    "waves-deep-adamw": describe(
        lambda: regress_on(lambda: smooth(48, 4), nn.MSELoss(), waves()),
        OF_ADAMW,
        (1000, "cosine", 32),
        ADAMW,
        "5%",
    ),
    "moons-sgd": describe(
        lambda: classify(
            lambda: nn.Sequential(
                *(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
            ),
            moons(),
        ),
        OF_SGD,
        (300, "cosine", 20),
        SGD,
    ),
    "causal-convolutions-adamw": describe(
        lambda: predict_characters(lambda: CausalConvolutions(48), text(20, 50)),
        OF_ADAMW,
        (250, "cosine", 16),
        ADAMW,
        "5%",
    ),
    "two-characters-sgd": describe(
        lambda: predict_characters(lambda: Factors(24), text(90, 120)),
        OF_SGD,
        (300, "linear", 32),
        {"name": "sgd"},
    ),
    "mixer-adamw": describe(
        lambda: classify(lambda: Mixer(24, 2), digits(samples=1000)),
        OF_ADAMW,
        (250, "cosine", 32),
        ADAMW | {"weight_decay": 0.05},
        "10%",
    ),
    "halves-nadam": describe(
        lambda: regress_on(dense_half, nn.MSELoss(), halves()),
        OF_ADAMW,
        (300, "polynomial", 32),
        {"name": "nadam"},
    ),
    "separable-convolutions-rmsprop": describe(
        lambda: classify(lambda: separable_convolutions(16), digits(samples=1000)),
        OF_ADAMW,
        (250, "one_cycle", 32),
        {"name": "rmsprop", "momentum": 0.9},
    ),
    "properties-adamw": describe(
        lambda: regress_on(
            lambda: perceptron(64, 48, 4, 0.2), nn.BCEWithLogitsLoss(), properties()
        ),
        OF_ADAMW,
        (300, "inverse_sqrt", 24),
        ADAMW,
    ),
    "diabetes-huber-nesterov": describe(
        lambda: regress_on(
            lambda: perceptron(10, 32, 1, 0.2), nn.HuberLoss(), standardized("diabetes")
        ),
        OF_SGD,
        (300, "linear", 16),
        SGD | {"nesterov": True},
        "5%",
    ),
    "radius-absolute-adam": describe(
        measure_radius, OF_ADAMW, (300, "cosine", 32), {"name": "adam"}
    ),
    "wine-radam": describe(
        lambda: classify(lambda: perceptron(13, 24, 3, 0.1), wine()),
        OF_ADAMW,
        (150, "linear", 12),
        {"name": "radam"},
    ),
    "turned-rows-adamw": describe(
        lambda: classify(
            lambda: RowGRU(32), turned_digits(), init=surestep.InitWeights(learn_rows())
        ),
        OF_ADAMW,
        (150, "cosine", 16),
        ADAMW,
        "5%",
    ),
    "marked-sums-rnn-adam": describe(
        lambda: regress_on(lambda: LastState(2, 32, 1), nn.MSELoss(), sums()),
        OF_ADAMW,
        (600, "cosine", 32),
        {"name": "adam"},
    ),
    "four-samples-sgd": describe(
        lambda: classify(lambda: perceptron(64, 48, 10, 0.0), digits(samples=400)),
        OF_SGD,
        (400, "cosine", 4),
        SGD,
    ),
    "full-batch-adamw": describe(
        lambda: classify(lambda: residual_perceptron(32, 2), digits(samples=512)),
        OF_ADAMW,
        (120, "cosine", 512),
        ADAMW,
    ),
    "mislabelled-adamw": describe(
        lambda: classify(lambda: perceptron(64, 128, 10, 0.0), mislabelled_digits()),
        OF_ADAMW,
        (300, "cosine", 32),
        ADAMW,
    ),
    "tanh-sgd-constant": describe(
        lambda: classify(lambda: tanh_perceptron(48), digits(samples=800)),
        OF_SGD,
        (300, "constant", 32),
        SGD,
    ),
    "gpt-adamw-stable-decay": describe(
        lambda: predict_characters(lambda: GPT(32, 1, 4, LENGTH), text(120, 150)),
        OF_ADAMW,
        (500, "warmup_stable_decay", 16),
        ADAMW | {"weight_decay": 0.1},
        "5%",
    ),
}
