"""Preprocessing learns from samples that evaluate the model later.

A scaler, an imputer, a PCA or a selection of features that is fitted on all samples, before the
split or after it, has seen those for evaluation: their mean, their range, and with a selection of
features or oversampling even their labels or copies of them. The same goes for features that are
standardized by hand, as in `(X - X.mean(0)) / X.std(0)`. Nothing fails: the evaluation is better
than the model is.

A scaler that is fitted on the samples for evaluation again transforms them differently from those
for training.

Encoders that only number the classes, such as LabelEncoder, and transformations of one sample, such
as Normalizer, learn nothing of this kind and are not reported. Ignore it if all samples that the
model will ever see are known, labels aside.

Source: https://scikit-learn.org/stable/common_pitfalls.html#data-leakage

Wrong:

    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.integers(2, size=40)
    X = StandardScaler().fit_transform(X)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    print(LogisticRegression().fit(X_train, y_train).score(X_test, y_test))

Right:

    import matplotlib.pyplot as plt
    from sklearn.datasets import load_iris
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    x, y = load_iris(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)
    print(LogisticRegression(max_iter=500).fit(x_train, y_train).score(x_test, y_test))
    pca = PCA(2).fit(x)
    plt.scatter(*pca.transform(x_train).T)
    plt.scatter(*pca.transform(x_test).T)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.dimensions import mixes_samples
from surestep.doctor.source.operators import find_operations
from surestep.doctor.source.splits import (
    DataSplit,
    argument_text,
    find_splits,
    is_held_out,
    is_same_data,
    is_training_name,
    is_training_part,
)
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_made_by, options_of, tensor_of
from surestep.doctor.source.values import Call, Element, Item, Operation, Value, last_name, walk

SEVERITY = "error"
FIX = "Split first, fit on the training part only, and transform the others; or use a Pipeline."
_FITS = ("fit_transform", "fit_resample")  # learn, and return the result
_LEARNERS = (  # of statistics of samples
    r"(Standard|MinMax|MaxAbs|Robust)Scaler|(Quantile|Power)Transformer|KBinsDiscretizer|RFE(CV)?"
    r"|(Target|LeaveOneOut|CatBoost|JamesStein)Encoder|(Simple|KNN|Iterative)Imputer|NMF|FastICA"
    r"|(Incremental|Kernel|Sparse)?PCA|TruncatedSVD|FactorAnalysis|LinearDiscriminantAnalysis"
    r"|Select(KBest|Percentile|Fpr|Fdr|Fwe|FromModel)|SequentialFeatureSelector|VarianceThreshold"
    r"|GenericUnivariateSelect|(Borderline|SVM)?SMOTE|SMOTE(NC|ENN|Tomek)|ADASYN|RandomOverSampler"
)
_TRANSFORMERS = re.compile(
    rf"{_LEARNERS}|Pipeline|ColumnTransformer|FeatureUnion|make_(pipeline|column_transformer|union)"
)
_FUNCTIONS = re.compile(r"^sklearn\.preprocessing\.\w*(scale|_transform)$")
_LIBRARIES = ("sklearn.", "imblearn.", "category_encoders.", "cuml.")
_MODEL_CALLS = frozenset(  # which get samples to learn or to answer
    "fit partial_fit fit_predict predict predict_proba decision_function score tensor as_tensor "
    "from_numpy Tensor FloatTensor TensorDataset DataLoader DMatrix Dataset Pool () train".split()
)
_CENTERS = ("mean", "nanmean", "min", "amin")
_SCALES = ("std", "nanstd", "max", "amax", "ptp", "var")
_TRANSPOSES = ("T", "mT", "transpose", "permute", "swapaxes", "moveaxis")
_MOST_PARTS = 50  # of an expression


class _Use(NamedTuple):
    """Samples that were transformed by what was learned.

    Attributes:
        made: the result.
        given: the samples; None if they are what was learned from.
    """

    made: Value
    given: Value | None = None


class _Learned(NamedTuple):
    """Statistics of samples.

    Attributes:
        event: the call that learns them; of several by hand, the first.
        source: the samples.
        text: their expression.
        uses: what they transform.
    """

    event: Event
    source: Value
    text: str
    uses: list[_Use]


def check(program: Program) -> Iterator[Problem]:
    """Find preprocessing that is fitted on data that is split later."""
    for trace in program.traces:
        splits = find_splits(trace)
        fits = [(event, call) for event, call in trace.calls if splits and _learns(call)]
        yield from _check_refits(trace, splits, fits)
        fitted = [_find_fit(trace, event, call) for event, call in fits]
        reported: set[Event] = set()
        for learned in (*fitted, *_find_standardizations(trace)) if splits else ():
            event, leak = learned.event, _find_leak(trace, splits, learned)
            if leak is not None and event not in reported:
                reported.add(event)
                is_later = trace.index(leak) >= trace.index(event)
                aim = "afterwards" if is_later else "for an evaluation"
                text = f"`{event.text}` learns from all samples, and line {leak.line} splits them"
                yield at_event(event, f"{text} {aim}.", split_line=leak.line)


def _find_leak(trace: Trace, splits: list[DataSplit], learned: _Learned) -> Event | None:
    """Return what splits samples that were learned from, of which a part evaluates a model."""
    if is_training_part(learned.source, learned.text):
        return None
    for split, use in product(splits, learned.uses):
        is_later = trace.index(split.event) >= trace.index(learned.event)
        if use.given is None:
            is_leak = is_later and use.made in split.list_parts(trace)
        else:
            is_leak = split.is_of(learned.source) and split.has_part(use.given)
            is_leak = is_leak and (is_later or _is_learned_from(trace, use.made))
        if is_leak:
            return split.event
    return None


def _check_refits(
    trace: Trace, splits: list[DataSplit], fits: list[tuple[Event, Call]]
) -> Iterator[Problem]:
    """Find what learned from a part for training, and learns from one for evaluation again."""
    others = [other for _, other in fits if is_training_name(argument_text(other))]
    for fit, call in fits:
        is_for_evaluation = is_held_out(argument_text(call).partition("[")[0])
        is_refit = call.name in _FITS and is_for_evaluation and _is_learned_from(trace, call)
        alike = [other for other in others if is_refit and _find_name(other) == _find_name(call)]
        for split, other in product(splits, alike):
            if split.has_part(call.args[0]) and split.has_part(other.args[0]):
                text = "learns from samples for evaluation, so their features are not transformed"
                yield at_event(fit, f"`{describe(call)}` {text} as those for training.")
                break


def _find_name(fit: Call) -> str:
    return last_name(_find_learner(fit.receiver))


def _find_fit(trace: Trace, fit: Event, call: Call) -> _Learned:
    """Return what a call learns, with its uses until it learns again, and folds of its result."""
    source, text, learner = call.args[0], argument_text(call), _find_learner(call.receiver)
    uses = [] if call.name == "fit" else [_Use(call)]
    for event in trace.events[trace.index(fit) + 1 :]:
        other = event.call
        if other is not None and other.is_method and _find_learner(other.receiver) is learner:
            given = other.argument(0, "X")
            if other.name in ("fit", *_FITS):
                break
            if other.name == "transform" and given is not None:
                is_whole = is_same_data(given, source) or argument_text(other) == text
                uses.append(_Use(other, None if is_whole else given))
        for value in (event.value, *event.value.inputs) if call.name == "fit_transform" else ():
            if isinstance(value, Item) and call in walk(value.base):
                uses.append(_Use(value, value))
    return _Learned(fit, source, text, uses)


def _is_learned_from(trace: Trace, samples: Value) -> bool:
    """Return whether a model or a dataset gets samples; what is transformed may only be shown."""
    return not isinstance(samples, Call) or any(
        call.name in _MODEL_CALLS and call is not samples and samples in walk(call)
        for _, call in trace.calls
    )


def _learns(call: Call) -> bool:
    """Return whether a call certainly learns statistics of the samples that it is given first."""
    if not call.is_method or call.name not in ("fit", *_FITS):
        return bool(call.args and _FUNCTIONS.match(call.path))
    learners = options_of(call.receiver) if is_made_by(call.receiver, *_LIBRARIES) else ()
    return bool(call.args and learners) and all(
        _TRANSFORMERS.fullmatch(last_name(made)) and any(map(_has_statistics, walk(made)))
        for made in learners
    )


def _has_statistics(made: Value) -> bool:
    is_learner = re.fullmatch(_LEARNERS, last_name(made)) and is_made_by(made, *_LIBRARIES)
    # A SimpleImputer(strategy="constant") learns nothing.
    return bool(is_learner) and all(getattr(p, "value", "") != "constant" for p in made.inputs)


def _find_learner(value: Value | None) -> Value | None:
    """Return the object that `fit` was called on: `fit` returns it."""
    while isinstance(value, Call) and value.is_method and value.name == "fit":
        value = value.receiver
    return value


def _find_standardizations(trace: Trace) -> Iterator[_Learned]:
    """Yield where features are standardized, as in `(X - X.mean(0)) / X.std(0)`.

    Statistics of each sample, of one sample or file after another, and of data that is transposed
    are left out.
    """
    events: dict[Value, Event] = {call: event for event, call in trace.calls}
    for part in dict.fromkeys(p for e in trace.events for p in find_operations(e.value)):
        match part:
            case Operation("/", (Operation("-", (given, center)), scale)):
                is_scaled = any(_source_of(p, _SCALES) for p in walk(scale, _MOST_PARTS))
                for call in options_of(center) if is_scaled else ():
                    source = _source_of(call, _CENTERS)
                    if source is not None and _is_of_all(source, events):
                        use = _Use(part, None if is_same_data(given, source) else given)
                        yield _Learned(events[call], source, events[call].text, [use])


def _is_of_all(samples: Value, events: dict[Value, Event]) -> bool:
    """Return whether samples are neither one after another, nor transposed."""
    return not any(
        isinstance(p, Element) or last_name(p) in _TRANSPOSES or (p in events and events[p].loops)
        for p in walk(samples)
    )


def _source_of(statistic: Value, names: tuple[str, ...]) -> Value | None:
    """Return the samples that a value is a statistic of; None if it is not one of each feature."""
    if isinstance(statistic, Call) and statistic.name in names and mixes_samples(statistic):
        return tensor_of(statistic)
    return None
