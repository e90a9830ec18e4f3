"""For each registered loss: outputs, targets, and its mean by an independent formula."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from surestep import losses
from surestep.engine.losses.base import LossModule

N, C, T, V, S = 7, 3, 5, 6, 4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.double)


def indices(*shape: int, classes: int = C, seed: int = 1, low: int = 0) -> Tensor:
    return torch.randint(low, classes, shape, generator=generator(seed))


def masked(targets: Tensor, share: float = 0.3, value: int = -100) -> Tensor:
    """Mask some targets unevenly, and all of the second sample."""
    hidden = torch.rand(targets.shape, generator=generator(2)) < share
    hidden[1] = True
    return targets.masked_fill(hidden, value)


@dataclass(frozen=True)
class Case:
    """A loss, its arguments, and its mean by an independent formula."""

    loss: LossModule
    outputs: Any
    targets: Any
    mean: Callable[[Any, Any], Tensor]


WEIGHT = torch.tensor([0.2, 1.0, 3.0], dtype=torch.double)
POS = torch.tensor([2.0, 0.5, 1.0], dtype=torch.double)
YES = indices(N, classes=2).double()
LABELS = indices(N, C, classes=2).double()
FIGURES = normal(N, 2, seed=3)
LOGITS, PIXELS, WORDS = normal(N, C), normal(N, C, 4, 5), normal(N, T, V)
TEACHER, SOFT = 2 * normal(N, C, seed=5), normal(N, C, seed=6).softmax(1)
TOKENS = masked(indices(N, T, classes=V))
MASKS = indices(N, C, 4, 5, classes=2).double()
REGIONS = masked(indices(N, 4, 5))
SIGNS = indices(N, classes=2).double() * 2 - 1
FRAMES, LENGTHS = torch.tensor([9, 9, 8, 9, 7, 9, 9]), torch.tensor([4, 1, 2, 3, 1, 4, 2])
SPOKEN = (indices(N, S, classes=V, low=1), FRAMES, LENGTHS)


def classes_last(loss: nn.Module) -> Callable[[Any, Any], Tensor]:
    return lambda outputs, targets: loss(outputs.movedim(-1, 1), targets)


def rows_of(loss: nn.Module) -> Callable[[Any, Any], Tensor]:
    return lambda outputs, targets: loss(outputs.flatten(0, -2), targets.flatten(0, -2))


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    each = []
    for column, q in enumerate((0.1, 0.5, 0.9)):
        error = targets - outputs[..., column]
        each.append(torch.where(error >= 0, q * error, (q - 1) * error))
    return torch.stack(each).mean()


def nt_xent(outputs: Any, _: Any) -> Tensor:
    views, total = torch.cat(outputs), torch.zeros((), dtype=torch.double)
    for i in range(2 * N):
        scores = F.cosine_similarity(views[i : i + 1], views) / 0.5
        others = [j for j in range(2 * N) if j != i]
        total = total + torch.logsumexp(scores[others], 0) - scores[(i + N) % (2 * N)]
    return total / (2 * N)


def clip(outputs: Any, _: Any) -> Tensor:
    a, b = (each / each.norm(dim=1, keepdim=True) for each in outputs)
    scores, own = a @ b.T / 0.07, torch.arange(N)
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def distilled(outputs: Tensor, targets: Any) -> Tensor:
    labels, teacher = targets
    kept = labels != -100
    soft = nn.KLDivLoss(reduction="batchmean")(
        F.log_softmax(outputs[kept] / 4, 1), F.softmax(teacher[kept] / 4, 1)
    )
    return 0.7 * 16 * soft + 0.3 * F.cross_entropy(outputs, labels)


def dice_of(p: Tensor, t: Tensor) -> Tensor:
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def dice_masks(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.sigmoid()
    return torch.stack([dice_of(p[n, c], targets[n, c]) for n in range(N) for c in range(C)]).mean()


def dice_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.sigmoid()
    return torch.stack([dice_of(p[:, c], targets[:, c]) for c in range(C)]).mean()


def dice_regions(outputs: Tensor, targets: Tensor) -> Tensor:
    p, each = outputs.softmax(1), []
    for n in range(N):
        kept = targets[n] != -100
        if kept.any():
            classes = [dice_of(p[n, c][kept], (targets[n] == c)[kept].double()) for c in range(C)]
            each.append(torch.stack(classes).mean())
    return torch.stack(each).mean()


def dice_batch_regions(outputs: Tensor, targets: Tensor) -> Tensor:
    p, kept = outputs.softmax(1), targets != -100
    return torch.stack(
        [dice_of(p[:, c][kept], (targets == c)[kept].double()) for c in range(C)]
    ).mean()


def dice_bce(outputs: Tensor, targets: Tensor) -> Tensor:
    return dice_masks(outputs, targets) + 0.5 * nn.BCEWithLogitsLoss()(outputs, targets)


def dice_ce(outputs: Tensor, targets: Tensor) -> Tensor:
    kept = [n for n in range(N) if (targets[n] != -100).any()]
    ce = [F.cross_entropy(outputs[n : n + 1], targets[n : n + 1]) for n in kept]
    return dice_regions(outputs, targets) + 2 * torch.stack(ce).mean()


def focal_masks(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.sigmoid()
    yes, no = -0.25 * (1 - p) ** 2 * p.log(), -0.75 * p**2 * (1 - p).log()
    return torch.where(targets == 1, yes, no).mean()


def focal_regions(outputs: Tensor, targets: Tensor) -> Tensor:
    kept = targets != -100
    p = outputs.softmax(1).movedim(1, -1)[kept]
    own = p[torch.arange(len(p)), targets[kept]]
    return (-WEIGHT[targets[kept]] * (1 - own) ** 1.5 * own.log()).mean()


def next_token(outputs: Tensor, targets: Tensor, ignored: int = -100) -> Tensor:
    rows, wanted = outputs[:, :-1].reshape(-1, V), targets[:, 1:].reshape(-1)
    return F.cross_entropy(rows, wanted, ignore_index=ignored)


def with_z(outputs: Tensor, targets: Tensor, ignored: int = -100) -> Tensor:
    logits, wanted = outputs[:, :-1], targets[:, 1:]
    log_z = logits.exp().sum(-1).log()[wanted != ignored]
    return next_token(outputs, targets, ignored) + 0.1 * (log_z**2).mean()


def every_token(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.transpose(1, 2), targets, label_smoothing=0.1)


def spoken(outputs: Tensor, targets: Any) -> Tensor:
    return nn.CTCLoss()(outputs.log_softmax(2).transpose(0, 1), *targets)


def binary_masked(outputs: Tensor, targets: Tensor) -> Tensor:
    kept = targets >= 0
    return nn.BCEWithLogitsLoss()(outputs[kept], 0.8 * targets[kept].double() + 0.1)


def torchs(module: nn.Module) -> Callable[[Any, Any], Tensor]:
    return lambda outputs, targets: module(outputs, targets)


SMOOTH = {"weight": WEIGHT, "label_smoothing": 0.1}
CASES: dict[str, Case] = {
    "binary": Case(losses.binary(), LOGITS[:, 0], YES, torchs(nn.BCEWithLogitsLoss())),
    "binary pos_weight": Case(
        losses.binary(pos_weight=3.0),
        *(LOGITS[:, :1], YES[:, None].long()),
        lambda o, t: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))(o, t.double()),
    ),
    "binary smoothed, ignored": Case(
        losses.binary(label_smoothing=0.2, ignore_index=-1),
        *(LOGITS[:, 0], masked(YES.long(), value=-1), binary_masked),
    ),
    "multiclass": Case(
        losses.multiclass(), LOGITS, masked(indices(N)), torchs(nn.CrossEntropyLoss())
    ),
    "multiclass weighted, smoothed": Case(
        losses.multiclass(**SMOOTH),
        *(PIXELS, REGIONS, torchs(nn.CrossEntropyLoss(**SMOOTH))),
    ),
    "multiclass ignoring 1": Case(
        losses.multiclass(ignore_index=1),
        *(LOGITS, indices(N), torchs(nn.CrossEntropyLoss(ignore_index=1))),
    ),
    "multiclass probabilities": Case(
        losses.multiclass(**SMOOTH), LOGITS, SOFT, torchs(nn.CrossEntropyLoss(**SMOOTH))
    ),
    "multiclass, classes last": Case(
        losses.multiclass(**SMOOTH, class_dim=-1),
        *(PIXELS.movedim(1, -1), REGIONS, classes_last(nn.CrossEntropyLoss(**SMOOTH))),
    ),
    "multiclass probabilities, classes last": Case(
        losses.multiclass(**SMOOTH, class_dim=-1),
        *(WORDS[..., :C], WORDS[..., :C].softmax(-1), rows_of(nn.CrossEntropyLoss(**SMOOTH))),
    ),
    "multilabel": Case(losses.multilabel(), LOGITS, LABELS, torchs(nn.BCEWithLogitsLoss())),
    "multilabel pos_weight": Case(
        losses.multilabel(pos_weight=POS),
        *(LOGITS, LABELS, torchs(nn.BCEWithLogitsLoss(pos_weight=POS))),
    ),
    "mse": Case(losses.mse(), normal(N, 2), FIGURES, torchs(nn.MSELoss())),
    "mae": Case(losses.mae(), normal(N, 2), FIGURES, torchs(nn.L1Loss())),
    "huber": Case(losses.huber(delta=0.5), normal(N, 2), FIGURES, torchs(nn.HuberLoss(delta=0.5))),
    "quantile": Case(losses.quantile(), normal(N, 2, 3), FIGURES, pinball),
    "margin": Case(
        losses.margin(margin=0.5),
        *((normal(N), normal(N, seed=4)), SIGNS),
        lambda o, t: nn.MarginRankingLoss(margin=0.5)(*o, t),
    ),
    "margin in one tensor": Case(
        losses.margin(), normal(N, 2), SIGNS, lambda o, t: (-t * (o[:, 0] - o[:, 1])).relu().mean()
    ),
    "triplet": Case(
        losses.triplet(),
        *(tuple(normal(N, 4, seed=s) for s in range(3)), None),
        lambda o, _: nn.TripletMarginLoss()(*o),
    ),
    "triplet by sums": Case(
        losses.triplet(margin=0.7, p=1.0),
        *(tuple(normal(N, 4, seed=s) for s in range(3)), None),
        lambda o, _: nn.TripletMarginLoss(0.7, p=1.0)(*o),
    ),
    "contrastive": Case(
        losses.contrastive(), tuple(normal(N, 4, seed=s) for s in range(2)), None, nt_xent
    ),
    "contrastive_pairs": Case(
        losses.contrastive_pairs(), tuple(normal(N, 4, seed=s) for s in range(2)), None, clip
    ),
    "distillation": Case(
        losses.distillation(temperature=4.0, alpha=0.7),
        *(LOGITS, (masked(indices(N)), TEACHER), distilled),
    ),
    "dice": Case(losses.dice(), PIXELS, MASKS, dice_masks),
    "dice of regions": Case(losses.dice(), PIXELS, REGIONS, dice_regions),
    "dice per batch, ignored": Case(losses.dice(per="batch"), PIXELS, REGIONS, dice_batch_regions),
    "dice per batch": Case(losses.dice(per="batch"), PIXELS, MASKS, dice_batch),
    "dice_bce": Case(losses.dice_bce(bce=0.5), PIXELS, MASKS, dice_bce),
    "dice_ce": Case(losses.dice_ce(ce=2.0), PIXELS, REGIONS, dice_ce),
    "focal": Case(losses.focal(alpha=0.25), PIXELS, MASKS, focal_masks),
    "focal of regions": Case(losses.focal(gamma=1.5, alpha=WEIGHT), PIXELS, REGIONS, focal_regions),
    "next_token": Case(losses.next_token(), WORDS, TOKENS, next_token),
    "next_token z-loss, ignoring 2": Case(
        losses.next_token(z_loss=0.1, ignore_index=2),
        *(WORDS, indices(N, T, classes=V), lambda o, t: with_z(o, t, 2)),
    ),
    "next_token shifted": Case(
        losses.next_token(targets="shifted", label_smoothing=0.1), WORDS, TOKENS, every_token
    ),
    "next_token z-loss, words second": Case(
        losses.next_token(z_loss=0.1, class_dim=1),
        *(WORDS.transpose(1, 2), TOKENS, lambda o, t: with_z(o.transpose(1, 2), t)),
    ),
    "masked_tokens": Case(losses.masked_tokens(label_smoothing=0.1), WORDS, TOKENS, every_token),
    "ctc": Case(losses.ctc(), normal(N, 9, V), SPOKEN, spoken),
    "ctc, last blank": Case(
        losses.ctc(blank=V - 1),
        *(normal(N, 9, V, seed=8), (SPOKEN[0] - 1, FRAMES, LENGTHS)),
        lambda o, t: nn.CTCLoss(V - 1)(o.log_softmax(2).transpose(0, 1), *t),
    ),
}


def rows(value: Any, start: int, stop: int) -> Any:
    """Return some samples of nested tensors."""
    if value is None:
        return None
    return (
        value[start:stop]
        if isinstance(value, Tensor)
        else tuple(rows(each, start, stop) for each in value)
    )


def as_type(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return None if value is None else tuple(as_type(each, dtype) for each in value)
