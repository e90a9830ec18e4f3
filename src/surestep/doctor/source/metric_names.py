"""Whether a metric should grow or fall, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

_GROWS = re.compile(
    r"(^|[_/])(m?ap|acc|accuracy|accuracies|f1|f1score|auc|auroc|dice|iou|miou|bleu|rouge\w?|recall"
    r"|precision|psnr|ssim|kappa|ndcg|mrr|r2|top\d|acc\d)(_|/|$|\d)",
    re.IGNORECASE,
)
_FALLS = re.compile(
    r"loss|(^|[_/])(err|error|mse|rmse|mae|nll|wer|cer|fid|ppl|perplexity|bpc|bpb|lpips)(_|/|$)",
    re.IGNORECASE,
)
_TURNED = re.compile(r"neg|minus|inv|drop|1_?-|one_minus|worst|gap|diff|delta", re.IGNORECASE)


def find_better(names: Iterable[str]) -> str:
    """Return "max" if a metric with these names should grow, "min" if it should fall.

    It is "" if the names are of no known metric, or do not agree.
    """
    found = set()
    for name in names:
        grows, falls = _GROWS.search(name), _FALLS.search(name)
        if _TURNED.search(name) or (grows and falls):
            return ""
        if grows or falls:
            found.add("max" if grows else "min")
    return found.pop() if len(found) == 1 else ""
