"""Preprocessing that learns statistics of samples: scalers, imputers, PCA, selected features."""

from __future__ import annotations

import re

from surestep.doctor.source.training import options_of
from surestep.doctor.source.values import Call, Constant, Value, walk

FITS = ("fit_transform", "fit_resample")  # learn, and return the result
_CLASSES = frozenset(
    "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler QuantileTransformer PowerTransformer "
    "KBinsDiscretizer TargetEncoder LeaveOneOutEncoder CatBoostEncoder JamesSteinEncoder "
    "SimpleImputer KNNImputer IterativeImputer PCA IncrementalPCA KernelPCA SparsePCA "
    "TruncatedSVD FastICA NMF FactorAnalysis LinearDiscriminantAnalysis SelectKBest "
    "SelectPercentile SelectFpr SelectFdr SelectFwe SelectFromModel RFE RFECV "
    "SequentialFeatureSelector VarianceThreshold GenericUnivariateSelect SMOTE ADASYN "
    "BorderlineSMOTE SVMSMOTE SMOTENC RandomOverSampler SMOTEENN SMOTETomek".split()
)
_FUNCTIONS = re.compile(r"^sklearn\.preprocessing\.\w*(scale|_transform)$")
_LIBRARIES = ("sklearn.", "imblearn.", "category_encoders.", "cuml.")


def learns(call: Call) -> bool:
    """Return whether a call certainly learns from the samples that it is given first."""
    if not call.args:
        return False
    if call.is_method and call.name in (*FITS, "fit"):
        return _is_learner(call.receiver)
    return bool(_FUNCTIONS.match(call.path))


def find_learner(value: Value | None) -> Value | None:
    """Return the object that `fit` was called on: `fit` returns it."""
    while isinstance(value, Call) and value.is_method and value.name == "fit":
        value = value.receiver
    return value


def _is_learner(value: Value | None) -> bool:
    """Return whether an object certainly learns statistics of the samples when it is fitted."""
    options = options_of(value)
    return bool(options) and all(
        any(isinstance(source, Call) and _has_statistics(source) for source in walk(option))
        and isinstance(option, Call)
        and option.path.startswith(_LIBRARIES)
        and _is_transformer(option)
        for option in options
    )


def _is_transformer(made: Call) -> bool:
    composed = ("Pipeline", "make_pipeline", "ColumnTransformer", "make_column_transformer")
    return made.name in _CLASSES or made.name in (*composed, "FeatureUnion", "make_union")


def _has_statistics(made: Call) -> bool:
    strategy = made.keywords.get("strategy")
    is_constant = isinstance(strategy, Constant) and strategy.value == "constant"
    return made.path.startswith(_LIBRARIES) and made.name in _CLASSES and not is_constant
