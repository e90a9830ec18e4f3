"""Metrics over a full set or of the inputs, and values logged from inside a model.

Other metrics are plain functions, or objects of torchmetrics as they are.
"""

from surestep.engine.metrics.base import InputMetric as InputMetric
from surestep.engine.metrics.base import log as log
from surestep.engine.metrics.whole_set import whole_set as whole_set

__all__ = ["InputMetric", "log", "whole_set"]
