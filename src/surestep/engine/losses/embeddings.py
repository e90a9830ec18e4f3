"""Losses of scores and embeddings: ranking, triplets and contrast.

A contrastive loss compares every sample of a batch with every other, so it is not separable.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from surestep.engine.losses.base import FirstBatch, LossDoc, LossModule, at_least_fp32
from surestep.engine.losses.input_checks import as_tuple, check_signs

_NO_TARGETS = "not used: may be None, with Task(inputs=lambda batch: (batch, None))"
_TORCH = "https://docs.pytorch.org/docs/stable/generated/torch.nn.{}.html"


@dataclass(eq=False, repr=False, kw_only=True)
class Margin(LossModule):
    """Pairwise ranking: which of two scores should be higher.

    Args:
        margin: by how much it should be higher.
    """

    name = "margin"
    doc = LossDoc(
        "pairwise ranking",
        "scores (a, b), each (N,), or one tensor (N, 2)",
        "1 if a ranks higher, -1 if b does (N,)",
        "max(0, -t (a - b) + margin)",
        "pairs",
        _TORCH.format("MarginRankingLoss"),
    )
    over = "elements"

    margin: float = 0.0

    def total(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the hinge of the differences, summed."""
        a, b = map(at_least_fp32, as_tuple(outputs, ("a", "b"), self.name))
        return functional.margin_ranking_loss(a, b, targets, margin=self.margin, reduction="sum")

    def check(self, first: FirstBatch) -> None:
        """Check that there are two scores for each target of -1 or 1."""
        a, b = as_tuple(first.outputs, ("a", "b"), self.name)
        if not a.shape == b.shape == first.targets.shape:
            raise self.shape_error(first, "Scores of one column take scores.squeeze(-1).")
        check_signs(first.targets, self.name)


@dataclass(eq=False, repr=False, kw_only=True)
class Triplet(LossModule):
    """Embeddings of triplets: the anchor should be closer to the positive than to the negative.

    Args:
        margin: by how much it should be closer.
        p: norm of the distances.
    """

    name = "triplet"
    doc = LossDoc(
        "embeddings of triplets",
        "(anchor, positive, negative), each (N, D), or one tensor (N, 3, D)",
        _NO_TARGETS,
        "max(0, |a - p| - |a - n| + margin)",
        "triplets",
        _TORCH.format("TripletMarginLoss"),
    )

    above_zero = {"margin": "Equal embeddings would have a loss of 0. Use 1.0."}
    margin: float = 1.0
    p: float = 2.0

    def total(self, outputs: Any, targets: Any) -> Tensor:
        """Return the hinge of the distances, summed."""
        parts = as_tuple(outputs, ("anchor", "positive", "negative"), self.name)
        a, p, n = map(at_least_fp32, parts)
        return functional.triplet_margin_loss(
            a, p, n, margin=self.margin, p=self.p, reduction="sum"
        )

    def check(self, first: FirstBatch) -> None:
        """Check that there are three embeddings of one shape."""
        parts = as_tuple(first.outputs, ("anchor", "positive", "negative"), self.name)
        if len({part.shape for part in parts}) > 1 or parts[0].dim() != 2:
            raise self.shape_error(first, "The three embeddings must have the same shape.")


class _Contrastive(LossModule):
    """A loss of pairs of embeddings, temperature apart."""

    is_separable = False

    above_zero = {"temperature": "Use 0.07 to 0.5."}
    temperature: float

    def check(self, first: FirstBatch) -> None:
        """Check that there are two embeddings of one shape, and more than one sample."""
        a, b = as_tuple(first.outputs, ("a", "b"), self.name)
        if a.shape != b.shape or a.dim() != 2 or len(a) < 2:
            hint = "The two embeddings must have the same shape, with at least two samples."
            raise self.shape_error(first, hint)


@dataclass(eq=False, repr=False, kw_only=True)
class Contrastive(_Contrastive):
    """Two views of each sample, contrasted with all others of the batch (NT-Xent, SimCLR).

    Args:
        temperature: divisor of the cosine similarities.
    """

    name = "contrastive"
    doc = LossDoc(
        "embeddings of two views",
        "(a, b), each (N, D), or one tensor (N, 2, D)",
        _NO_TARGETS,
        "-log softmax over the other 2N - 1 views of cos(z_i, z_j) / T, at the other view of i",
        "samples; not separable: a sample is compared with its micro-batch",
        "Chen et al. 2020, https://arxiv.org/abs/2002.05709",
    )

    temperature: float = 0.5

    def total(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum over samples of the mean of both views."""
        a, b = as_tuple(outputs, ("a", "b"), self.name)
        views = functional.normalize(at_least_fp32(torch.cat([a, b])), dim=1)
        scores = views @ views.T / self.temperature
        itself = torch.eye(len(views), dtype=torch.bool, device=a.device)
        scores = scores.masked_fill(itself, -torch.inf)
        other = torch.arange(len(views), device=a.device).roll(len(a))
        return functional.cross_entropy(scores, other, reduction="sum") / 2


@dataclass(eq=False, repr=False, kw_only=True)
class ContrastivePairs(_Contrastive):
    """Two kinds of embedding of each sample, such as image and text (CLIP).

    Args:
        temperature: divisor of the cosine similarities.
    """

    name = "contrastive_pairs"
    doc = LossDoc(
        "embeddings of pairs",
        "(a, b), each (N, D), or one tensor (N, 2, D)",
        _NO_TARGETS,
        "mean of -log softmax_j cos(a_i, b_j) / T and -log softmax_j cos(b_i, a_j) / T, at j = i",
        "samples; not separable: a sample is compared with its micro-batch",
        "Radford et al. 2021, https://arxiv.org/abs/2103.00020",
    )

    temperature: float = 0.07

    def total(self, outputs: Any, targets: Any) -> Tensor:
        """Return the sum over samples of the mean of both directions."""
        pair = as_tuple(outputs, ("a", "b"), self.name)
        a, b = (functional.normalize(at_least_fp32(embedding), dim=1) for embedding in pair)
        scores, own = a @ b.T / self.temperature, torch.arange(len(a), device=a.device)
        there = functional.cross_entropy(scores, own, reduction="sum")
        return (there + functional.cross_entropy(scores.T, own, reduction="sum")) / 2
