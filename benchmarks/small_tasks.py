"""A recipe: six small tasks on data that is installed, each trained in a fraction of a second.

`surestep train benchmarks/small_tasks.py --task.name characters` trains one. The data is
scikit-learn's digits, diabetes and breast cancer, and the source of Python's standard library.
"""

from functools import cache

from torch import Tensor, nn

import surestep
from surestep.base.errors import ConfigError
from surestep.recipes.chars import ALPHABET, encode, source_files
from surestep.recipes.digits import images
from surestep.recipes.imbalanced import tumours
from surestep.recipes.tabular import patients

LENGTH = 12  # characters
EVALUATIONS, STEPS = 8, 64

config = surestep.Config(
    max_steps=STEPS,
    batch_size=32,
    optim=surestep.Optim(name="adamw", lr=3e-3, weight_decay=0.01),
    schedule=surestep.Schedule(name="cosine"),
    validation=surestep.Validation(every=f"{STEPS // EVALUATIONS} steps"),
)

Data = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]  # train and validation


@cache
def digits(samples: int) -> Data:
    """Return so many images (samples, 1, 8, 8) and their digits, and 300 others."""
    x, y = images()
    return (x[:samples], y[:samples]), (x[1200:1500], y[1200:1500])


@cache
def standardized(name: str) -> Data:
    """Return the rows of a table in units of the standard deviation, the last 150 of them apart."""
    x, y = patients() if name == "diabetes" else tumours()
    x = (x - x[:-150].mean(dim=0)) / x[:-150].std(dim=0)
    if y.is_floating_point():
        y = (y - y[:-150].mean()) / y[:-150].std()
    return (x[:-150], y[:-150]), (x[-150:], y[-150:])


@cache
def characters() -> Data:
    """Return windows (samples, LENGTH) of characters, and the characters that follow each."""
    text = "".join(file.read_text(encoding="utf-8") for file in source_files()[:12])
    tokens = encode(text[: 1200 * LENGTH + 1])
    x, y = tokens[:-1].view(-1, LENGTH), tokens[1:].view(-1, LENGTH)
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


class Characters(nn.Module):
    """Predict the next character with a GRU."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, len(ALPHABET)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, length) to logits (batch, alphabet, length)."""
        logits: Tensor = self.head(self.gru(self.embed(tokens))[0])
        return logits.transpose(1, 2)


def perceptron(inputs: int, width: int, outputs: int, dropout: float) -> nn.Sequential:
    """Return two layers with dropout between them."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(width, outputs),
    )


def convolutions(width: int, dropout: float) -> nn.Sequential:
    """Return two convolutions with BatchNorm for the digits."""
    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, stride=2, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(dropout), nn.Linear(width, 10)),
    )


NAMES = ("digits", "convolutions", "autoencoder", "diabetes", "cancer", "characters")


def task(name: str = "digits", width: int = 32, dropout: float = 0.1) -> surestep.Task:
    """Train a small model.

    Args:
        name: digits, convolutions, autoencoder, diabetes, cancer or characters.
        width: of its hidden layer.
        dropout: share of the hidden features that are dropped.

    Raises:
        ConfigError: there is no task of this name.
    """
    if name not in NAMES:
        raise ConfigError(f"task.name={name!r} is none of: {', '.join(NAMES)}.")
    if name == "characters":
        train, val = characters()
        return surestep.Task(Characters(width, dropout), nn.CrossEntropyLoss(), train, val=val)
    if name in ("diabetes", "cancer"):
        train, val = standardized(name)
        if name == "diabetes":
            return surestep.Task(perceptron(10, width, 1, dropout), nn.MSELoss(), train, val=val)
        model = perceptron(30, width, 2, dropout)
        return surestep.Task(model, nn.CrossEntropyLoss(), train, val=val)
    train, val = digits(600)
    if name == "autoencoder":
        (x, _), (held_out, _) = train, val
        pairs, others = (x, x.flatten(1)), (held_out, held_out.flatten(1))
        return surestep.Task(perceptron(64, width, 64, dropout), nn.MSELoss(), pairs, val=others)
    if name == "convolutions":
        return surestep.Task(convolutions(width, dropout), nn.CrossEntropyLoss(), train, val=val)
    model = perceptron(64, width, 10, dropout)
    return surestep.Task(model, nn.CrossEntropyLoss(), train, val=val)
