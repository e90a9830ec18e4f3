"""Whether a smaller or a larger value of a metric is better, by its usual name."""

from typing import Literal

LARGER_IS_BETTER = frozenset(
    (
        "accuracy",
        "acc",
        "auroc",
        "auc",
        "f1",
        "precision",
        "recall",
        "iou",
        "dice",
        "map",
        "bleu",
        "r2",
    )
)
SMALLER_IS_BETTER = frozenset(("loss", "error", "mse", "mae", "rmse", "perplexity", "wer", "cer"))


def direction_of(metric: str) -> Literal["min", "max"] | None:
    """Return whether a smaller or a larger value is better; None if the name is not a usual one.

    Args:
        metric: its name, without the split, such as "accuracy".
    """
    name = metric.lower()
    return "max" if name in LARGER_IS_BETTER else "min" if name in SMALLER_IS_BETTER else None
