"""Ranking: which of two is better, and which is nearer."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.losses.base import FirstBatch, LossDoc, LossModule, at_least_fp32
from surestep.engine.losses.input_checks import as_tuple
from surestep.engine.losses.target_checks import check_signs

_TORCH = "https://docs.pytorch.org/docs/stable/generated/torch.nn.{}.html"


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

    def __init__(self, *, margin: float = 0.0) -> None:
        super().__init__(margin=margin)
        self.margin = margin

    def total(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the hinge of the differences, summed."""
        a, b = map(at_least_fp32, as_tuple(outputs, ("a", "b"), self.name))
        return functional.margin_ranking_loss(a, b, targets, margin=self.margin, reduction="sum")

    def items(self, batch: Any, targets: Tensor) -> float:
        """Count pairs."""
        return targets.numel()

    def check(self, first: FirstBatch) -> None:
        """Check that there are two scores for each target of -1 or 1."""
        a, b = as_tuple(first.outputs, ("a", "b"), self.name)
        if not a.shape == b.shape == first.targets.shape:
            raise TaskError(
                f"The scores have shapes {tuple(a.shape)} and {tuple(b.shape)}, the targets "
                f"{tuple(first.targets.shape)}; margin compares them one by one. Use "
                "scores.squeeze(-1)."
            )
        check_signs(first.targets, self.name)


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
        "not used: may be None, with Task(inputs=lambda batch: (batch, None))",
        "max(0, |a - p| - |a - n| + margin)",
        "triplets",
        _TORCH.format("TripletMarginLoss"),
    )

    def __init__(self, *, margin: float = 1.0, p: float = 2.0) -> None:
        super().__init__(margin=margin, p=p)
        if margin <= 0:
            raise TaskError(f"margin={margin} is not above 0: all points in one would do. Use 1.0.")
        self.margin, self.p = margin, p

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
        shapes = {tuple(part.shape) for part in parts}
        if len(shapes) > 1 or parts[0].dim() != 2:
            raise TaskError(
                f"The embeddings have shapes {', '.join(map(str, sorted(shapes)))}, and triplet "
                "takes three of one shape (samples, features)."
            )
