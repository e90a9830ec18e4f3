"""Losses of surestep: each against its formula in docs/losses.md, as a mean over the full batch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

losses = surestep.losses
G = torch.Generator().manual_seed(9)
N = 31
X = torch.randn(N, 4, generator=G, dtype=torch.float64)
Mean = Callable[[Any, Any], Tensor]


def uniform(*shape: int) -> Tensor:
    """Draw from 0 to 1."""
    return torch.rand(*shape, generator=G, dtype=torch.float64)


def integers(high: int, *shape: int) -> Tensor:
    """Draw from 0 to high - 1."""
    return torch.randint(0, high, shape, generator=G)


def ignored(targets: Tensor, value: int) -> Tensor:
    """Ignore many targets, and all of some samples in a row: a micro-batch of 3 has none."""
    targets = targets.clone()
    targets[torch.rand(targets.shape, generator=G) < 0.4] = value
    targets[7:10] = value
    targets[-1] = 1  # the last batch is one sample
    return targets


class Shaped(nn.Module):
    """A linear model whose outputs have a shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, int(torch.Size(shape).numel())).double()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return 3 * self.linear(x).reshape(len(x), *self.shape)


def plain_training(net: nn.Module, mean: Mean, data: tuple[Tensor, ...]) -> list[Any]:
    """Train with full batches of 6; return losses, weights and the mean over all samples."""
    optimizer, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(2):
        for x, *rest in in_batches(6, *data):
            targets = rest[0] if len(rest) == 1 else tuple(rest)
            optimizer.zero_grad()
            loss = mean(net(x), targets)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    with torch.no_grad():
        targets = data[1] if len(data) == 2 else data[1:]
        return [found, weights(net), mean(net(data[0]), targets).item()]


def check(net: nn.Module, loss: Any, mean: Mean, *data: Tensor, **task_options: Any) -> None:
    """Compare two epochs with micro-batches of 4 (of 6, the last batch of 1), and an evaluation."""
    plain_net = copy.deepcopy(net)
    plain = plain_training(plain_net, mean, (X, *data))
    if len(data) > 1:
        task_options["inputs"] = lambda batch: (batch[0], tuple(batch[1:]))
    task = surestep.Task(net, loss, train=(X, *data), val=(X, *data), **task_options)
    config = plain_config(epochs=2, batch_size=6, micro_batch_size=4, validation={"batch_size": 5})
    session = prepare(task, config)
    values = [float(result.loss) for result in session.steps()]
    assert_same(plain, [values, weights(net), session.evaluate()["val/loss"]])


def log_p(x: Tensor) -> Tensor:
    return x - x.exp().sum(1, keepdim=True).log()


def smoothed_binary(x: Tensor, t: Tensor, p: Any, e: float) -> Tensor:
    t = (1 - e) * t + e / 2
    return -p * t * x.sigmoid().log() - (1 - t) * (1 - x.sigmoid()).log()


def test_binary_with_weight_smoothing_and_ignored_targets() -> None:
    targets = ignored(integers(2, N, 1), -1)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        return smoothed_binary(x, t.double(), 2.5, 0.2)[t != -1].mean()

    check(
        Shaped(1),
        losses.binary(pos_weight=2.5, label_smoothing=0.2, ignore_index=-1),
        mean,
        targets,
    )


def test_binary_of_soft_targets_and_one_dimension() -> None:
    mean = lambda x, t: smoothed_binary(x, t, 1.0, 0.0).mean()  # noqa: E731
    check(Shaped(), losses.binary(), mean, uniform(N))


def test_multilabel_with_a_weight_for_each_label_and_ignored_labels() -> None:
    targets, p = ignored(integers(2, N, 5), 9), torch.tensor([0.5, 1, 2, 3, 0], dtype=torch.float64)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        return smoothed_binary(x, t.double(), p, 0.1)[t != 9].mean()

    loss = losses.multilabel(pos_weight=p, label_smoothing=0.1, ignore_index=9)
    check(Shaped(5), loss, mean, targets)


def test_multilabel_balanced_weight_is_zeros_by_ones_of_each_label() -> None:
    targets = integers(2, N, 5).double()
    ones = targets.sum(0)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        return smoothed_binary(x, t, (N - ones) / ones, 0.0).mean()

    check(Shaped(5), losses.multilabel(pos_weight="balanced"), mean, targets)


W = torch.tensor([0.3, 2.0, 1.1], dtype=torch.float64)


def cross_entropy(x: Tensor, t: Tensor, w: Tensor, s: float, ignore: int) -> Tensor:
    """Weighted, smoothed cross-entropy by the formula; classes are in dimension 1."""
    kept = t != ignore
    q = functional.one_hot(t.where(kept, 0), x.shape[1]).movedim(-1, 1).double()
    q = (1 - s) * q + s / x.shape[1]
    shape = (1, -1, *[1] * (x.dim() - 2))
    each = -(w.view(shape) * q * log_p(x)).sum(1)
    return each[kept].sum() / w[t[kept]].sum()


@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 2, 2)])
def test_multiclass_with_weights_smoothing_and_ignored_targets(shape: tuple[int, ...]) -> None:
    targets = ignored(integers(3, N, *shape[1:]), 255)
    mean = lambda x, t: cross_entropy(x, t, W, 0.1, 255)  # noqa: E731
    loss = losses.multiclass(weight=W, label_smoothing=0.1, ignore_index=255)
    check(Shaped(*shape), loss, mean, targets)


def test_multiclass_with_classes_last() -> None:
    targets = ignored(integers(3, N, 5), -100)
    mean = lambda x, t: cross_entropy(x.transpose(1, 2), t, W, 0.1, -100)  # noqa: E731
    loss = losses.multiclass(weight=W, label_smoothing=0.1, class_dim=-1)
    check(Shaped(5, 3), loss, mean, targets)


def test_multiclass_balanced_weight_leaves_out_ignored_targets() -> None:
    targets = ignored(integers(3, N), -100)
    counts = torch.bincount(targets[targets != -100])
    balanced = counts.sum() / (3 * counts.double())
    mean = lambda x, t: cross_entropy(x, t, balanced, 0.0, -100)  # noqa: E731
    check(Shaped(3), losses.multiclass(weight="balanced"), mean, targets)


@pytest.mark.parametrize("last", [False, True])
def test_multiclass_of_probabilities_is_a_mean_over_positions(last: bool) -> None:
    targets = uniform(N, 5, 3).softmax(2)
    targets = targets if last else targets.transpose(1, 2).contiguous()

    def mean(x: Tensor, t: Tensor) -> Tensor:
        x, t = (x.transpose(1, 2), t.transpose(1, 2)) if last else (x, t)
        return -(W[:, None] * (0.9 * t + 0.1 / 3) * log_p(x)).sum(1).mean()

    loss = losses.multiclass(weight=W, label_smoothing=0.1, class_dim=-1 if last else 1)
    check(Shaped(5, 3) if last else Shaped(3, 5), loss, mean, targets)


def test_regressions_are_means_over_elements() -> None:
    targets = uniform(N, 2, 3) * 4

    def huber(x: Tensor, t: Tensor) -> Tensor:
        d = (x - t).abs()
        return torch.where(d <= 0.7, d * d / 2, 0.7 * (d - 0.35)).mean()

    check(Shaped(2, 3), losses.mse(), lambda x, t: (x - t).square().mean(), targets)
    check(Shaped(2, 3), "mae", lambda x, t: (x - t).abs().mean(), targets)
    check(Shaped(2, 3), losses.huber(delta=0.7), huber, targets)


def test_quantile_is_a_mean_over_elements_and_quantiles() -> None:
    q = torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        return torch.maximum(q * (t[..., None] - x), (q - 1) * (t[..., None] - x)).mean()

    check(Shaped(2, 3), losses.quantile(quantiles=(0.05, 0.5, 0.9)), mean, uniform(N, 2))


def test_margin_and_triplet() -> None:
    signs = integers(2, N).double() * 2 - 1
    margin = lambda x, t: (0.3 - t * (x[:, 0] - x[:, 1])).clamp(min=0).mean()  # noqa: E731
    check(Shaped(2), losses.margin(margin=0.3), margin, signs)

    def triplet(x: Tensor, t: Tensor) -> Tensor:
        near, far = ((x[:, 0] - x[:, i] + 1e-6).abs().pow(3).sum(1).pow(1 / 3) for i in (1, 2))
        return (near - far + 0.7).clamp(min=0).mean()

    check(Shaped(3, 5), losses.triplet(margin=0.7, p=3.0), triplet, torch.zeros(N))


@pytest.mark.parametrize("name", ["contrastive", "contrastive_pairs"])
def test_contrastive_losses_of_a_full_batch(name: str) -> None:
    def simclr(x: Tensor, t: Tensor) -> Tensor:
        z = torch.cat([x[:, 0], x[:, 1]])
        n, terms = len(x), []
        for i in range(2 * n):
            cos = functional.cosine_similarity(z[i][None], z) / 0.3
            rest = torch.cat([cos[:i], cos[i + 1 :]])
            terms.append(rest.logsumexp(0) - cos[(i + n) % (2 * n)])
        return torch.stack(terms).mean()

    def clip(x: Tensor, t: Tensor) -> Tensor:
        cos = functional.cosine_similarity(x[:, None, 0], x[None, :, 1], dim=2) / 0.3
        own = cos.diagonal()
        return ((cos.logsumexp(1) - own) + (cos.logsumexp(0) - own)).mean() / 2

    mean = simclr if name == "contrastive" else clip
    net = Shaped(2, 5)
    plain_net = copy.deepcopy(net)
    plain = plain_training(plain_net, mean, (X, torch.zeros(N)))[:2]
    task = surestep.Task(net, getattr(losses, name)(temperature=0.3), train=(X, torch.zeros(N)))
    session = prepare(task, plain_config(epochs=2, batch_size=6))
    assert_same(plain, [[float(r.loss) for r in session.steps()], weights(net)])


def test_distillation_is_a_mean_over_labels_that_are_not_ignored() -> None:
    labels, teacher = ignored(integers(3, N, 5), -100), uniform(N, 3, 5) * 5

    def mean(x: Tensor, t: Any) -> Tensor:
        label, y = t
        kept = label != -100
        wanted = (y / 3).softmax(1)
        soft = (wanted * (wanted.log() - log_p(x / 3))).sum(1)[kept].mean()
        hard = cross_entropy(x, label, torch.ones(3, dtype=torch.float64), 0.1, -100)
        return 0.7 * 9 * soft + 0.3 * hard

    loss = losses.distillation(temperature=3.0, alpha=0.7, label_smoothing=0.1)
    check(Shaped(3, 5), loss, mean, labels, teacher)


def dice(p: Tensor, t: Tensor, smooth: float) -> Tensor:
    """Return one minus the overlap of each sample, (N,)."""
    p, t = p.flatten(2), t.flatten(2)
    return 1 - ((2 * (p * t).sum(2) + smooth) / (p.sum(2) + t.sum(2) + smooth)).mean(1)


def test_dice_of_indices_is_a_mean_over_samples_with_a_pixel() -> None:
    targets = ignored(integers(3, N, 2, 3), 255)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        kept = (t != 255)[:, None]
        hot = functional.one_hot(t.where(t != 255, 0), 3).movedim(-1, 1) * kept
        return dice(x.softmax(1) * kept, hot, 0.5)[kept.flatten(1).any(1)].mean()

    check(Shaped(3, 2, 3), losses.dice(smooth=0.5, ignore_index=255), mean, targets)


def test_dice_and_cross_entropy_are_means_over_samples() -> None:
    targets = ignored(integers(3, N, 2, 3), 255)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        kept = t != 255
        hot = functional.one_hot(t.where(kept, 0), 3).movedim(-1, 1) * kept[:, None]
        ce = -(hot * log_p(x)).sum(1).flatten(1).sum(1) / kept.flatten(1).sum(1).clamp(min=1)
        found = dice(x.softmax(1) * kept[:, None], hot, 1.0) + 0.3 * ce
        return found[kept.flatten(1).any(1)].mean()

    check(Shaped(3, 2, 3), losses.dice_ce(ignore_index=255, ce=0.3), mean, targets)


def test_dice_and_binary_cross_entropy_of_masks() -> None:
    targets = integers(2, N, 3, 2, 2).double()

    def mean(x: Tensor, t: Tensor) -> Tensor:
        return dice(x.sigmoid(), t, 2.0).mean() + 0.4 * smoothed_binary(x, t, 1.0, 0.0).mean()

    check(Shaped(3, 2, 2), losses.dice_bce(smooth=2.0, bce=0.4), mean, targets)
    check(
        Shaped(3, 2, 2),
        losses.dice(smooth=2.0),
        lambda x, t: dice(x.sigmoid(), t, 2.0).mean(),
        targets,
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_of_indices_is_a_mean_over_targets(gamma: float) -> None:
    targets = ignored(integers(3, N, 5), -100)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        kept = t != -100
        own = log_p(x).gather(1, t.where(kept, 0)[:, None])[:, 0]
        return (-W[t.where(kept, 0)] * (1 - own.exp()) ** gamma * own)[kept].mean()

    check(Shaped(3, 5), losses.focal(gamma=gamma, alpha=W), mean, targets)


def test_focal_of_masks_and_labels_is_a_mean_over_targets() -> None:
    targets = ignored(integers(2, N, 3), 255)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        p = torch.where(t == 1, x.sigmoid(), 1 - x.sigmoid())
        a = torch.where(t == 1, 0.25, 0.75)
        return (-a * (1 - p) ** 2 * p.log())[t != 255].mean()

    check(Shaped(3), losses.focal(alpha=0.25, ignore_index=255), mean, targets)


@pytest.mark.parametrize("last", [False, True])
def test_next_token_shifts_the_targets(last: bool) -> None:
    tokens = ignored(integers(5, N, 7), -100)

    def mean(x: Tensor, t: Tensor) -> Tensor:
        x = (x.transpose(1, 2) if last else x)[:, :, :-1]
        t = t[:, 1:]
        ce = cross_entropy(x, t, torch.ones(5, dtype=torch.float64), 0.1, -100)
        return ce + 0.01 * x.logsumexp(1).square()[t != -100].mean()

    loss = losses.next_token(z_loss=0.01, label_smoothing=0.1, class_dim=-1 if last else 1)
    check(Shaped(7, 5) if last else Shaped(5, 7), loss, mean, tokens)


def test_masked_tokens_and_shifted_tokens_are_means_over_targets() -> None:
    tokens = ignored(integers(5, N, 7), 0)
    ones = torch.ones(5, dtype=torch.float64)
    mean = lambda x, t: cross_entropy(x.transpose(1, 2), t, ones, 0.0, 0)  # noqa: E731
    check(Shaped(7, 5), losses.masked_tokens(ignore_index=0), mean, tokens)
    check(Shaped(7, 5), losses.next_token(ignore_index=0, targets="shifted"), mean, tokens)


def test_ctc_divides_each_sample_by_the_length_of_its_labels() -> None:
    labels, lengths = integers(4, N, 3) + 1, integers(3, N) + 1
    frames = integers(3, N) + 7

    def mean(x: Tensor, t: Any) -> Tensor:
        return functional.ctc_loss(x.log_softmax(2).transpose(0, 1), *t)

    check(Shaped(9, 5), losses.ctc(), mean, labels, frames, lengths)
