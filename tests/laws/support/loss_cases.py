"""Common losses, each with data whose denominators differ between micro-batches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.laws.support.plain import order_of
from tests.laws.support.tasks import mlp, rows

TOKENS, WORDS = 7, 20


@dataclass(frozen=True)
class Case:
    """A model, its data, and a loss that returns a mean; `items` if it is a plain callable."""

    model: Callable[[], nn.Module]
    mean_loss: Callable[[Tensor, Tensor], Tensor]
    data: tuple[Tensor, Tensor]
    items: str | Callable = "samples"


class Tagger(nn.Module):
    """Token ids (samples, tokens) to scores (samples, classes, tokens)."""

    def __init__(self, *, classes_last: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)
        self.classes_last = classes_last

    def forward(self, x: Tensor) -> Tensor:
        scores = self.head(self.norm(self.embedding(x)).tanh())
        return scores if self.classes_last else scores.transpose(1, 2)


def tagger(dtype: torch.dtype, **options: bool) -> nn.Module:
    torch.manual_seed(1)
    return Tagger(**options).to(dtype)


def tokens(masked_places: slice = slice(16, 24)) -> tuple[Tensor, Tensor]:
    """Return token ids and targets, masked unevenly, some rows of the first epoch fully."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, WORDS, (55, TOKENS), generator=generator)
    y = torch.randint(0, 5, (55, TOKENS), generator=generator)
    kept = torch.randint(0, TOKENS + 1, (55, 1), generator=generator)
    y[torch.arange(TOKENS).expand(55, -1) >= kept] = -100
    y[order_of(55, 0, 0)[masked_places]] = -100
    return x, y


def _plain(dtype: torch.dtype) -> Case:
    return Case(partial(mlp, dtype), nn.CrossEntropyLoss(), rows(dtype=dtype))


def _nll(dtype: torch.dtype) -> Case:
    weight = torch.tensor([0.2, 1.0, 3.0], dtype=dtype)
    return Case(partial(_log_mlp, dtype), nn.NLLLoss(weight), rows(dtype=dtype))


def _log_mlp(dtype: torch.dtype) -> nn.Module:
    return nn.Sequential(mlp(dtype), nn.LogSoftmax(1))


def _masked_tokens(dtype: torch.dtype, **options: float) -> Case:
    weight = torch.tensor([0.1, 1.0, 2.0, 0.5, 5.0], dtype=dtype)
    loss = nn.CrossEntropyLoss(weight, ignore_index=-100, **options)
    return Case(partial(tagger, dtype), loss, tokens())


def _first_masked(dtype: torch.dtype) -> Case:
    return Case(partial(tagger, dtype), nn.CrossEntropyLoss(), tokens(slice(0, 4)))


def _callable_tokens(dtype: torch.dtype) -> Case:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    model = partial(tagger, dtype, classes_last=True)
    return Case(model, loss, tokens(), items="tokens")


def _callable_of_batch(dtype: torch.dtype) -> Case:
    """A mean over positive targets, which only a custom function can count."""
    x, y = rows(dtype=dtype)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = functional.cross_entropy(outputs, targets, reduction="none")
        return (loss * (targets > 0)).sum() / (targets > 0).sum()

    return Case(partial(mlp, dtype), loss, (x, y), items=lambda batch: (batch[1] > 0).sum())


def _smoothed(dtype: torch.dtype) -> Case:
    return _masked_tokens(dtype, label_smoothing=0.1)


def _probabilities(dtype: torch.dtype) -> Case:
    x, _ = rows(dtype=dtype)
    y = torch.randn(55, 3, generator=torch.Generator().manual_seed(4), dtype=dtype).softmax(1)
    weight = torch.tensor([0.2, 1.0, 3.0], dtype=dtype)
    return Case(partial(mlp, dtype), nn.CrossEntropyLoss(weight, label_smoothing=0.1), (x, y))


def _spatial(dtype: torch.dtype) -> Case:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(55, 2, 4, 4, generator=generator, dtype=dtype)
    y = torch.randint(0, 3, (55, 4, 4), generator=generator)
    y[torch.rand(y.shape, generator=generator) < 0.4] = 255

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1)).to(dtype)

    return Case(model, nn.CrossEntropyLoss(ignore_index=255), (x, y))


def _binary(dtype: torch.dtype) -> Case:
    x, y = rows(dtype=dtype)
    weight = torch.tensor([2.0, 1.0, 0.5], dtype=dtype)
    targets = functional.one_hot(y, 3).to(dtype)
    return Case(partial(mlp, dtype), nn.BCEWithLogitsLoss(pos_weight=weight), (x, targets))


def _squares(dtype: torch.dtype) -> Case:
    x, _ = rows(dtype=dtype)
    return Case(partial(mlp, dtype), nn.MSELoss(), (x, x[:, :3] * x[:, 3:6]))


def _divergence(dtype: torch.dtype) -> Case:
    x, y = _probabilities(dtype).data
    return Case(partial(_log_mlp, dtype), nn.KLDivLoss(reduction="batchmean"), (x, y))


def _declared_sum(dtype: torch.dtype) -> Case:
    return Case(partial(mlp, dtype), nn.CrossEntropyLoss(reduction="sum"), rows(dtype=dtype))


def _balanced(dtype: torch.dtype) -> Case:
    """Weights whose sum is the number of samples over all data, but not over a batch."""
    x, _ = rows(60, dtype)
    y = torch.tensor([0] * 28 + [1] * 18 + [2] * 14)
    weight = torch.tensor([0.5, 1.0, 2.0], dtype=dtype)
    assert weight[y].sum() == 60
    return Case(partial(mlp, dtype), nn.CrossEntropyLoss(weight), (x, y))


CASES: dict[str, Callable[[torch.dtype], Case]] = {
    "cross-entropy": _plain,
    "nll, weighted": _nll,
    "masked tokens, weighted": _masked_tokens,
    "masked tokens, smoothed": _smoothed,
    "first four masked": _first_masked,
    "callable over tokens": _callable_tokens,
    "callable over its own count": _callable_of_batch,
    "probability targets": _probabilities,
    "spatial targets": _spatial,
    "binary, elementwise": _binary,
    "squares, elementwise": _squares,
    "divergence over samples": _divergence,
    "balanced weights": _balanced,
    "a sum, declared": _declared_sum,
}
