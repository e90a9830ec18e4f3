"""Measure how often the check of the first batch finds a loss that is declared incorrectly.

`python -m benchmarks.declarations --tries 100` prints the table of docs/losses.md. Each try draws
its own data and its own new model, whose outputs hardly differ from sample to sample, or not at all
(a last layer of zeros). Half of the tries are of each kind.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.base.errors import TaskError
from surestep.engine.checks.first_batch import check_first_batch
from surestep.engine.data.batch_loader import make_loader
from surestep.trainer.planning import plan_task

SIZES = (8, 64, 256)
FEATURES, CLASSES, PLACES = 6, 5, 12
PAD = 255


class Own(nn.Module):
    """Computes its own loss from embedded tokens, as Hugging Face models do.

    Its last layer is new (small weights) or zero.
    """

    def __init__(self, loss: Callable[[Any, Any], Any], spread: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.loss = loss
        self.table = nn.Embedding(CLASSES + 1, FEATURES)
        self.norm = nn.LayerNorm(FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        nn.init.normal_(self.head.weight, std=spread)
        nn.init.zeros_(self.head.bias)
        self.to(dtype)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss alone."""
        logits = self.head(self.norm(self.table(input_ids)))
        return {"loss": self.loss(logits.transpose(1, 2).float(), labels)}


class Found(nn.Module):
    """Returns a dict of losses in train mode only, as detectors do."""

    def __init__(self, loss: Callable[[Any, Any], Any], spread: float) -> None:
        super().__init__()
        self.net = Net((100,), spread)
        self.loss = loss

    def forward(self, x: Tensor, targets: Any = None) -> Any:
        """Return losses if there are targets."""
        found = self.net(x)
        if targets is None:
            return found
        return {"box": self.loss(found, targets), "label": 0.5 * self.loss(found + 1, targets)}


class Net(nn.Module):
    """A linear model with small first weights, whose outputs have the wanted shape."""

    def __init__(self, shape: tuple[int, ...], spread: float, final: Any = None) -> None:
        super().__init__()
        self.shape, self.final = shape, final
        self.linear = nn.Linear(FEATURES, torch.Size(shape).numel())
        nn.init.normal_(self.linear.weight, std=spread)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Any:
        """Return outputs (N, *shape), or what `final` makes of them."""
        outputs = self.linear(x).unflatten(1, self.shape)
        return outputs if self.final is None else self.final(outputs)


@dataclass(frozen=True)
class Case:
    """A loss and how it is declared.

    Attributes:
        loss: of (outputs, targets).
        targets: for a number of samples.
        shape: of the outputs of one sample.
        options: of the Task, such as its items.
        final: what the model does with its outputs last.
    """

    loss: Callable[[Any, Any], Any]
    targets: Callable[[int], Tensor]
    shape: tuple[int, ...]
    options: Mapping[str, Any]
    final: Callable[[Tensor], Any] | None = None


def padded(samples: int) -> Tensor:
    """Return classes (N, T) of sequences of 1 to T tokens."""
    lengths = torch.randint(1, PLACES + 1, (samples, 1))
    classes = torch.randint(CLASSES, (samples, PLACES))
    return classes.masked_fill(torch.arange(PLACES) >= lengths, PAD)


def classes(samples: int) -> Tensor:
    """One class for each sample."""
    return torch.randint(CLASSES, (samples,))


def figures(samples: int) -> Tensor:
    """Some numbers for each sample."""
    return torch.randn(samples, 4)


def anchors(samples: int) -> Tensor:
    """Whether each of 100 anchors is positive."""
    return (torch.rand(samples, 100) < torch.rand(samples, 1)).float()


def images(samples: int) -> Tensor:
    """Values from 0 to 1."""
    return torch.rand(samples, 16)


def tokens(batch: Any) -> int:
    """Count tokens that are not padding."""
    return int((batch[1] != PAD).sum())


def token_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of each token (N, T), 0 for padding."""
    return functional.cross_entropy(outputs, targets, ignore_index=PAD, reduction="none")


def token_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over tokens that are not padding."""
    return functional.cross_entropy(outputs, targets, ignore_index=PAD)


def sample_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of the mean over their tokens."""
    return (token_losses(outputs, targets).sum(1) / (targets != PAD).sum(1)).mean()


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each sample (N,)."""
    return (outputs - targets).square().mean(1)


def positives(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the squared error over anchors that are positive."""
    return ((outputs - 1).square() * targets).sum() / targets.sum().clamp(min=1)


def masked_pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over the pixels of a mask."""
    each = functional.binary_cross_entropy_with_logits(
        outputs, (targets > 0.5).to(outputs.dtype), reduction="none"
    )
    return (each * targets).sum() / targets.sum().clamp(min=1)


def class_weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the class weights of the samples."""
    weight = torch.arange(1.0, CLASSES + 1, dtype=outputs.dtype)
    return functional.cross_entropy(outputs, targets, weight)


def standardised(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error, in units of the spread of the batch."""
    return squares(outputs, targets).mean() / targets.std()


def contrastive(outputs: Tensor, _: Tensor) -> Tensor:
    """Return the loss that compares each sample with the others of the batch."""
    unit = functional.normalize(outputs, dim=1)
    return functional.cross_entropy(unit @ unit.T / 0.1, torch.arange(len(unit)))


def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the worst quarter."""
    each = squares(outputs, targets)
    return each.topk(max(1, len(each) // 4)).values.mean()


def unexplained(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one minus the coefficient of determination."""
    return (outputs - targets).square().sum() / (targets - targets.mean(0)).square().sum()


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one minus the overlap over the whole batch."""
    shares = outputs.sigmoid()
    return 1 - (2 * (shares * targets).sum() + 1) / (shares.sum() + targets.sum() + 1)


def covariance(outputs: Tensor, _: Tensor) -> Tensor:
    """Return how far the covariance of the outputs is from the identity."""
    centred = outputs - outputs.mean(0)
    return (centred.T @ centred / len(centred) - torch.eye(4, dtype=outputs.dtype)).square().sum()


def vae(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    """Return the loss of PyTorch's example of a variational autoencoder: a sum."""
    image, mean, log_variance = outputs
    bce = functional.binary_cross_entropy(image, targets, reduction="sum")
    return bce - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


def of_vae(outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split outputs into an image, and the mean and log variance of what it is made from."""
    return outputs[:, :16].sigmoid(), outputs[:, 16:20], outputs[:, 20:]


SEQUENCE = (CLASSES, PLACES)
WRONG: dict[str, Case] = {
    "sum, declared a mean over samples": Case(
        lambda o, t: token_losses(o, t).sum(), padded, SEQUENCE, {}
    ),
    "mean over tokens, declared over samples": Case(token_mean, padded, SEQUENCE, {}),
    "mean over samples, declared over tokens": Case(
        sample_mean, padded, SEQUENCE, {"items": tokens}
    ),
    "sum of tokens over samples, declared over tokens": Case(
        lambda o, t: token_losses(o, t).sum() / len(t), padded, SEQUENCE, {"items": tokens}
    ),
    "mean, declared a sum": Case(token_mean, padded, SEQUENCE, {"reduction": "sum"}),
    "sum divided by a constant": Case(lambda o, t: squares(o, t).sum() / 64, figures, (4,), {}),
    "mean over positive anchors": Case(positives, anchors, (100,), {}),
    "mean over the pixels of a mask": Case(masked_pixels, anchors, (100,), {}),
    "mean over class weights": Case(class_weighted, classes, (CLASSES,), {}),
    "maximum": Case(lambda o, t: squares(o, t).max(), figures, (4,), {}),
    "median": Case(lambda o, t: squares(o, t).median(), figures, (4,), {}),
    "mean of the worst quarter": Case(hardest, figures, (4,), {}),
    "root of the mean square": Case(lambda o, t: squares(o, t).mean().sqrt(), figures, (4,), {}),
    "log of the mean exponential": Case(
        lambda o, t: squares(o, t).exp().mean().log(), figures, (4,), {}
    ),
    "divided by the spread of the batch": Case(standardised, figures, (4,), {}),
    "one minus R2": Case(unexplained, figures, (4,), {}),
    "contrastive within the batch": Case(contrastive, classes, (4,), {}),
    "covariance of the batch": Case(covariance, classes, (4,), {}),
    "overlap over the batch": Case(dice, anchors, (100,), {}),
    "sum with a tuple of outputs (VAE)": Case(vae, images, (24,), {}, of_vae),
    "mean over tokens, in a dict": Case(
        lambda o, t: token_mean(o["logits"], t),
        *(padded, SEQUENCE, {}),
        lambda outputs: {"logits": outputs, "hidden": outputs.mean(1)},
    ),
    "mean over tokens, time first": Case(
        lambda o, t: token_mean(o.transpose(0, 1), t),
        *(padded, SEQUENCE, {}),
        lambda outputs: outputs.transpose(0, 1),
    ),
    "mean over tokens, flattened": Case(
        lambda o, t: functional.cross_entropy(o, t.flatten(), ignore_index=PAD),
        *(padded, SEQUENCE, {}),
        lambda outputs: outputs.transpose(1, 2).flatten(0, 1),
    ),
    "sum, computed by the model": Case(
        lambda o, t: o["error"] + 0 * t.sum(),
        *(figures, (4,), {}),
        lambda outputs: {"error": (outputs + 1).square().sum()},
    ),
}


def of_model(
    loss: Callable[[Any, Any], Any], dtype: torch.dtype = torch.float32, **options: Any
) -> Callable[[int, float], surestep.Task]:
    """Return what makes a Task whose model computes its own loss."""

    def make(samples: int, spread: float) -> surestep.Task:
        labels = padded(samples)
        batch = {
            "input_ids": torch.where(labels == PAD, CLASSES, labels),
            "labels": torch.where(labels == PAD, -100, labels),
        }
        return surestep.Task(
            model=Own(loss, spread, dtype),
            loss="model",
            train=[{name: each[row] for name, each in batch.items()} for row in range(samples)],
            **options,
        )

    return make


def of_detector(
    loss: Callable[[Any, Any], Any], **options: Any
) -> Callable[[int, float], surestep.Task]:
    """Return what makes a Task whose model returns losses in training only."""

    def make(samples: int, spread: float) -> surestep.Task:
        data = (torch.randn(samples, FEATURES), anchors(samples))
        return surestep.Task(
            model=Found(loss, spread), loss="model in training", train=data, **options
        )

    return make


def unpadded(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each token (N, T), 0 for ignored ones."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def over_places(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over samples of the mean over their tokens."""
    return (unpadded(outputs, labels).sum(1) / (labels != -100).sum(1)).mean()


def own_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over samples of the squared error."""
    return squares(outputs, targets).mean()


def count_rows(batch: Any) -> int:
    """Count the samples of a batch of named inputs."""
    return len(batch["labels"])


def count_positives(batch: Any) -> int:
    """Count positive anchors."""
    return int(batch[1].sum())


BF16 = torch.bfloat16
MODELS: dict[str, Callable[[int, float], surestep.Task]] = {
    "mean over samples, the model's own": of_model(over_places),
    "mean over samples, of a bf16 model": of_model(over_places, BF16),
    "mean over tokens, of a bf16 model, items=samples": of_model(
        functional.cross_entropy, BF16, items=count_rows
    ),
    "sum, of a bf16 model": of_model(lambda o, t: unpadded(o, t).sum(), BF16),
    "mean, of a bf16 model, declared a sum": of_model(
        functional.cross_entropy, BF16, reduction="sum"
    ),
    "of a detector, over samples, items=positives": of_detector(own_squares, items=count_positives),
    "of a detector, over positives, items=samples": of_detector(
        positives, items=lambda batch: len(batch[1])
    ),
    "of a detector, mean, declared a sum": of_detector(own_squares, reduction="sum"),
}
RIGHT: dict[str, Callable[[int, float], surestep.Task]] = {
    "mean over tokens, the model's own": of_model(functional.cross_entropy),
    "mean over tokens, of a bf16 model": of_model(functional.cross_entropy, BF16),
    "mean over samples, of a bf16 model": of_model(over_places, BF16, items=count_rows),
    "sum, of a bf16 model": of_model(lambda o, t: unpadded(o, t).sum(), BF16, reduction="sum"),
    "of a detector, over samples": of_detector(own_squares, items=lambda batch: len(batch[1])),
    "of a detector, over positives": of_detector(positives, items=count_positives),
}


def of_case(case: Case) -> Callable[[int, float], surestep.Task]:
    """Return what makes the Task of a loss function."""

    def make(samples: int, spread: float) -> surestep.Task:
        return surestep.Task(
            model=Net(case.shape, spread, case.final),
            loss=case.loss,
            train=(torch.randn(samples, FEATURES), case.targets(samples)),
            **case.options,
        )

    return make


def is_found(
    make: Callable[[int, float], surestep.Task], samples: int, seed: int, sentence: str = "is not a"
) -> bool:
    """Return whether the check of a first batch rejects a loss with this sentence."""
    torch.manual_seed(seed)
    task = make(samples, 0.02 if seed % 2 else 0.0)
    config = surestep.Config(epochs=1, batch_size=samples, seed=seed, device="cpu")
    planned = plan_task(task, config)
    parts: Any = {"task": planned.task, "loss": planned.loss, "plan": planned.plan}
    training = make_loader(task.train, "train", **parts, training=True)
    try:
        check_first_batch(planned.model, training, planned.task, autocast=nullcontext())
    except TaskError as error:
        return sentence in str(error)
    return False


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20, help="of each size, each of its own seed")
    tries = parser.parse_args().tries
    warnings.simplefilter("ignore")
    print("| the loss is | " + " | ".join(f"batch of {size}" for size in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    total = 0
    wrong = {**{name: of_case(case) for name, case in WRONG.items()}, **MODELS}
    for name, make in wrong.items():
        found = [sum(is_found(make, size, seed) for seed in range(tries)) for size in SIZES]
        total += sum(found)
        print(f"| {name} | " + " | ".join(f"{each} of {tries}" for each in found) + " |")
    print(f"\n{total} of {len(wrong) * len(SIZES) * tries} found")
    alarms = sum(
        is_found(make, size, seed, "")
        for make in RIGHT.values()
        for size in SIZES
        for seed in range(tries)
    )
    print(f"{alarms} of {len(RIGHT) * len(SIZES) * tries} right declarations rejected")


if __name__ == "__main__":
    main()
