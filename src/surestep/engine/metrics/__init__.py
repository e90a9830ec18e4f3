"""Metrics ready to use (`surestep.metrics`), and their values over batches and ranks."""

from surestep.engine.metrics.builtin import best_threshold as best_threshold
from surestep.engine.metrics.builtin import binary as binary
from surestep.engine.metrics.builtin import calibration_error as calibration_error
from surestep.engine.metrics.builtin import confusion_matrix as confusion_matrix
from surestep.engine.metrics.builtin import multilabel as multilabel
from surestep.engine.metrics.builtin import perplexity as perplexity
from surestep.engine.metrics.builtin import recall_at_precision as recall_at_precision
from surestep.engine.metrics.whole_set import whole_set as whole_set

__all__ = [
    "best_threshold",
    "binary",
    "calibration_error",
    "confusion_matrix",
    "multilabel",
    "perplexity",
    "recall_at_precision",
    "whole_set",
]
