"""An entry for each built-in loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from surestep import losses
from surestep.engine.losses.base import LossModule
from tests.laws.support.loss_cases import TOKENS, WORDS, Tagger, tokens
from tests.laws.support.registry_entries import Entry, Wrong
from tests.laws.support.tasks import mlp, rows

N = 55
PLACES = 6


class Shaped(nn.Module):
    """An MLP whose outputs are reshaped or split."""

    def __init__(self, outputs: int, shape: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net = mlp(outputs=outputs)
        self.shape = shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.net(x))


class Several(nn.Module):
    """An MLP over several inputs, with an output for each."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(outputs=4)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.net(x) for x in inputs)


class Speaker(Tagger):
    """Token ids to logits (samples, tokens, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes_last=True)
        self.head = nn.Linear(16, classes)


def random(*shape: int, high: int = 2, low: int = 0) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(5))


def figures(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(6))


def trains(
    loss: Any, model: Callable[[], nn.Module], *data: Tensor, **parts: Any
) -> Callable[[], dict[str, Any]]:
    """Return a function that builds the parts of a Task."""

    def make() -> dict[str, Any]:
        torch.manual_seed(1)
        return {"model": model(), "loss": loss(), "train": (rows()[0], *data), **parts}

    return make


def vector() -> nn.Module:
    return Shaped(1, lambda outputs: outputs.squeeze(1))


def pixels() -> nn.Module:
    return Shaped(3 * PLACES, lambda outputs: outputs.view(-1, 3, PLACES // 2, 2))


def columns() -> nn.Module:
    return mlp(outputs=3)


def squashed(kind: type[nn.Module]) -> dict[str, Any]:
    return {"model": nn.Sequential(mlp(), kind())}


def of_tokens(loss: Callable[[], LossModule], model: Callable[[], nn.Module]) -> Callable:
    x, y = tokens()
    return trains(loss, model, y, train=(x, y))


MASKS, REGIONS = random(N, 3, 3, 2).float(), random(N, 3, 2, high=3)
REGIONS[REGIONS == 2] = torch.tensor([2, -100]).repeat(N * PLACES)[: int((REGIONS == 2).sum())]
CLASSES, SIGNS = rows()[1], random(N).float() * 2 - 1
CLASSES_MASKED = CLASSES.masked_fill(random(N, high=4) == 0, -100)
X = rows()[0]


def views(batch: Any) -> Any:
    return (batch[0], batch[1]), None


def triples(batch: Any) -> Any:
    return tuple(batch), None


def lengths(batch: Any) -> Any:
    return batch[0], tuple(batch[1:])


def spoken() -> dict[str, Any]:
    x, _ = tokens()
    torch.manual_seed(1)
    labels = (random(N, 3, high=5, low=1), torch.full((N,), TOKENS), random(N, high=4, low=1))
    return {"model": Speaker(5), "loss": "ctc", "train": (x, *labels), "inputs": lengths}


def blanks() -> dict[str, Any]:
    parts = spoken()
    x, labels, frames, long = parts["train"]
    return {"train": (x, labels * 0, frames, long)}


# A constant added to all scores changes nothing here, so the gradient of the last bias is only
# rounding, which AdamW would scale to full steps.
SGD = {"optim": {"name": "sgd", "lr": 0.1}}

ENTRIES = {
    "binary": Entry(
        Wrong("as after a sigmoid", parts=lambda: {"model": nn.Sequential(vector(), nn.Sigmoid())}),
        parts=trains(lambda: losses.binary(pos_weight="balanced"), vector, random(N)),
    ),
    "multiclass": Entry(
        Wrong("outputs are probabilities", parts=lambda: squashed(lambda: nn.Softmax(1))),
        parts=trains(
            lambda: losses.multiclass(weight="balanced", label_smoothing=0.1),
            *(columns, CLASSES_MASKED),
        ),
    ),
    "multilabel": Entry(
        Wrong(
            "class indices use surestep.losses.multiclass", parts=lambda: {"train": (X, CLASSES)}
        ),
        parts=trains(
            lambda: losses.multilabel(pos_weight="balanced", ignore_index=-1),
            *(columns, random(N, 3, low=-1)),
        ),
    ),
    "mse": Entry(
        Wrong("would broadcast", parts=lambda: {"train": (X, figures(N))}),
        parts=trains(lambda: "mse", columns, figures(N, 3)),
    ),
    "mae": Entry(
        Wrong("takes floating point", parts=lambda: {"train": (X, random(N, 3))}),
        parts=trains(lambda: "mae", columns, figures(N, 3)),
    ),
    "huber": Entry(
        Wrong("would broadcast", parts=lambda: {"train": (X, figures(N, 2))}),
        parts=trains(lambda: losses.huber(delta=0.3), columns, figures(N, 3)),
    ),
    "quantile": Entry(
        Wrong("number for each of the 3 quantiles", parts=lambda: {"train": (X, figures(N, 3))}),
        parts=trains(lambda: "quantile", columns, figures(N)),
    ),
    "margin": Entry(
        Wrong("takes -1 and 1", parts=lambda: {"train": (X, random(N).float())}),
        options=SGD,
        parts=trains(
            lambda: losses.margin(margin=0.2),
            lambda: Shaped(2, lambda outputs: outputs.unbind(1)),
            SIGNS,
        ),
    ),
    "triplet": Entry(
        Wrong(
            "compares anchor, positive, negative",
            parts=lambda: {"inputs": views},
        ),
        options=SGD,
        parts=trains(lambda: "triplet", Several, figures(N, 10), X + 1, inputs=triples),
    ),
    "contrastive": Entry(
        Wrong("compares a, b", parts=lambda: {"inputs": triples, "train": (X, X, X)}),
        parts=trains(lambda: "contrastive", Several, X + 0.1 * figures(N, 10), inputs=views),
        tolerance=None,
    ),
    "contrastive_pairs": Entry(
        Wrong("compares a, b", parts=lambda: {"inputs": triples, "train": (X, X, X)}),
        parts=trains(lambda: "contrastive_pairs", Several, X + figures(N, 10), inputs=views),
        tolerance=None,
    ),
    "distillation": Entry(
        Wrong(
            "or let the targets be",
            parts=lambda: {"train": (X, CLASSES), "inputs": None},
        ),
        parts=trains(
            lambda: losses.distillation(temperature=3.0),
            *(columns, CLASSES_MASKED, figures(N, 3)),
            inputs=lengths,
        ),
    ),
    "dice": Entry(
        Wrong(
            "targets.unsqueeze",
            parts=lambda: {"model": Shaped(6, lambda outputs: outputs.view(-1, 1, 3, 2))},
        ),
        parts=trains(lambda: "dice", pixels, REGIONS),
    ),
    "dice_bce": Entry(
        Wrong("takes 0 to 1", parts=lambda: {"train": (X, MASKS * 255)}),
        parts=trains(lambda: "dice_bce", pixels, MASKS),
    ),
    "dice_ce": Entry(
        Wrong(
            "they are one-hot",
            parts=lambda: {
                "train": (X, nn.functional.one_hot(random(N, 3, 2, high=3), 3).movedim(-1, 1))
            },
        ),
        parts=trains(lambda: losses.dice_ce(ce=0.5), pixels, REGIONS),
    ),
    "focal": Entry(
        Wrong("alpha has shape", parts=lambda: {"loss": losses.focal(alpha=0.25)}),
        parts=trains(lambda: losses.focal(alpha=(0.2, 0.3, 0.5)), pixels, REGIONS),
    ),
    "next_token": Entry(
        Wrong(
            "shifted already", parts=lambda: {"train": (tokens()[0][:, :-1], tokens()[0][:, 1:])}
        ),
        parts=of_tokens(lambda: losses.next_token(z_loss=1e-3), lambda: Speaker(WORDS)),
    ),
    "masked_tokens": Entry(
        Wrong("every token is to be", parts=lambda: {"train": (tokens()[0], tokens()[0])}),
        parts=of_tokens(lambda: "masked_tokens", lambda: Speaker(WORDS)),
    ),
    "ctc": Entry(Wrong("which is the blank", parts=blanks), parts=spoken),
}
