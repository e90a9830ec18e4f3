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

import ast
import re
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from surestep.doctor.problem import Problem, at_event, at_node
from surestep.doctor.source.dimensions import dim_of
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
from surestep.doctor.source.training import describe, is_made_by, is_same, options_of, tensor_of
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Element,
    Instance,
    Item,
    Operation,
    Value,
    is_made_from,
    last_name,
    walk,
)

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
_SUBSET = re.compile(r"train|mask|idx|index|==|<|>|:\s*\w", re.IGNORECASE)
_CENTERS = ("mean", "nanmean", "min", "amin")
_SCALES = ("std", "nanstd", "max", "amax", "ptp", "var")
_TRANSPOSES = ("T", "mT", "transpose", "permute", "swapaxes", "moveaxis")
_MOST_PARTS = 50  # of an expression
_MOST_SOURCES = 300  # of samples


class _Use(NamedTuple):
    """Samples that were transformed by what was learned from samples.

    Attributes:
        made: the result.
        given: the samples.
        source: what was learned from.
        text: its expression.
        is_whole: whether the samples are the source.
    """

    made: Value
    given: Value
    source: Value
    text: str
    is_whole: bool = True


def check(program: Program) -> Iterator[Problem]:
    """Find preprocessing that is fitted on data that is split later."""
    for trace in program.traces:
        splits = find_splits(trace)
        fits = [(event, call) for event, call in trace.calls if splits and _learns(call)]
        yield from _check_refits(trace, splits, fits)
        for fit, call in fits:
            uses = list(_find_uses(trace, fit, call))
            if leak := next(_find_leaks(trace, splits, fit, uses), None):
                message = f"`{fit.text}` learns from all samples, and line {leak[0]} {leak[1]}."
                yield at_event(fit, message, split_line=leak[0])
        reported: set[Value] = set()
        for event, statistic, use in _find_standardizations(trace) if splits else ():
            leak = next(_find_leaks(trace, splits, event, [use]), None)
            if leak and statistic not in reported:
                reported.add(statistic)
                yield at_node(
                    use.made.node or event.node,
                    use.made.file or event.file,
                    f"`{describe(statistic)}` is computed from all samples, also from those that "
                    f"line {leak[0]} keeps for an evaluation.",
                    {"split_line": leak[0]},
                )


def _find_leaks(
    trace: Trace, splits: list[DataSplit], event: Event, uses: list[_Use]
) -> Iterator[tuple[int | None, str]]:
    """Yield the lines that split what an event learned from, and what they do with it."""
    uses = [use for use in uses if not is_training_part(use.source, use.text)]
    own = uses if event.call and event.call.name == "fit" else uses[:1]
    for split, use in product(splits, own):
        is_later = trace.index(split.event) >= trace.index(event)
        if is_later and (_holds(split, use, trace) if use.is_whole else _is_of_part(use, split)):
            yield split.event.line, "splits them afterwards"
    for split, use in product(splits, uses):
        if _is_of_part(use, split) and _is_learned_from(trace, use.made):
            yield split.event.line, "splits them for an evaluation"


def _is_of_part(use: _Use, split: DataSplit) -> bool:
    """Return whether a part of what was learned from is transformed."""
    return split.is_of(use.source) and split.has_part(use.given)


def _check_refits(
    trace: Trace, splits: list[DataSplit], fits: list[tuple[Event, Call]]
) -> Iterator[Problem]:
    """Find what learned from a part for training, and learns from one for evaluation again."""
    for fit, call in fits:
        is_for_evaluation = is_held_out(argument_text(call).partition("[")[0])
        if call.name in _FITS and is_for_evaluation and _is_learned_from(trace, call):
            own = [split for split in splits if split.has_part(call.args[0])]
            others = [other for _, other in fits if is_training_name(argument_text(other))]
            if any(
                _is_same_learner(call.receiver, other.receiver) and split.has_part(other.args[0])
                for split, other in product(own, others)
            ):
                text = "learns from samples for evaluation, so their features are not transformed"
                yield at_event(fit, f"`{describe(call)}` {text} as those for training.")


def _is_same_learner(a: Value | None, b: Value | None) -> bool:
    """Return whether objects that learn are the same, or made by the same call."""
    is_alike = isinstance(a, Call) and isinstance(b, Call) and a.path == b.path
    return is_alike or _find_learner(a) is _find_learner(b)


def _find_uses(trace: Trace, fit: Event, call: Call) -> Iterator[_Use]:
    """Yield what a preprocessing transforms until it learns again, and the folds of its result."""
    source, text, learner = call.args[0], argument_text(call), _find_learner(call.receiver)
    if call.name != "fit":
        yield _Use(call, source, source, text)
    for event in trace.events[trace.index(fit) + 1 :]:
        other = event.call
        if other is not None and other.is_method and _find_learner(other.receiver) is learner:
            given = other.argument(0, "X")
            if other.name in ("fit", *_FITS):
                return
            if other.name == "transform" and given is not None:
                is_whole = is_same(given, source) or argument_text(other) == text
                yield _Use(other, given, source, text, is_whole)
        for value in (event.value, *event.value.inputs) if call.name == "fit_transform" else ():
            if isinstance(value, Item) and is_made_from(value.base, call):
                yield _Use(value, value, source, text, is_whole=False)


def _holds(split: DataSplit, use: _Use, trace: Trace) -> bool:
    """Return whether the data of a split was made from a result, or the result was stored in it."""
    parts = [part for data in split.data for part in walk(data)]
    for dataset in [part for part in parts if isinstance(part, Instance)]:
        parts += [part for value in dataset.attributes.values() for part in walk(value)]
    if use.made in parts:
        return True
    for event in trace.events[: trace.index(split.event)]:
        table = event.base if event.kind == "store" else None
        if table is not None and is_made_from(event.value, use.made):
            is_rows = last_name(table) in ("loc", "iloc") and table.inputs  # `df.loc[...] = ...`
            return not _SUBSET.search(use.text) and (table.inputs[0] if is_rows else table) in parts
    return False


def _is_learned_from(trace: Trace, samples: Value) -> bool:
    """Return whether a model or a dataset gets samples; what is transformed may only be shown."""
    return not isinstance(samples, Call) or any(
        call.name in _MODEL_CALLS and any(is_made_from(given, samples) for given in call.inputs)
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
    match made:
        case Call(keywords={"strategy": Constant("constant")}):
            return False
    return bool(re.fullmatch(_LEARNERS, last_name(made))) and is_made_by(made, *_LIBRARIES)


def _find_learner(value: Value | None) -> Value | None:
    """Return the object that `fit` was called on: `fit` returns it."""
    while isinstance(value, Call) and value.is_method and value.name == "fit":
        value = value.receiver
    return value


def _find_standardizations(trace: Trace) -> Iterator[tuple[Event, Value, _Use]]:
    """Yield where features are standardized, as in `(X - X.mean(0)) / X.std(0)`, by which center.

    Statistics of each sample, of one sample or file after another, and of data that is transposed
    are left out.
    """
    seen: set[Value] = set()
    repeated = {call for event, call in trace.calls if event.loops}
    for event in trace.events:
        parts = list(walk(event.value, _MOST_PARTS)) if event.kind in ("store", "call") else []
        if any(last_name(part) in _TRANSPOSES for part in parts):
            continue
        for part in parts:
            match part:
                case Operation("/", (Operation("-", (given, center)), scale)) if part not in seen:
                    seen.add(part)
                    is_scaled = any(_source_of(p, _SCALES) for p in walk(scale, _MOST_PARTS))
                    for statistic in options_of(center) if is_scaled else ():
                        source = _source_of(statistic, _CENTERS)
                        if source is not None and not _is_one_of_many(source, repeated):
                            is_whole = is_same_data(given, source)
                            use = _Use(part, given, source, _text_of(statistic), is_whole)
                            yield event, statistic, use


def _is_one_of_many(samples: Value, repeated: set[Call]) -> bool:
    parts = walk(samples, _MOST_SOURCES)
    return any(isinstance(part, Element) or part in repeated for part in parts)


def _source_of(statistic: Value, names: tuple[str, ...]) -> Value | None:
    """Return the samples that a value is a statistic of; None if it is not one of each feature."""
    if not isinstance(statistic, Call) or statistic.name not in names:
        return None
    axis, source = dim_of(statistic), tensor_of(statistic)
    if axis is None:  # the statistics of a table of pandas are those of its columns
        parts = [] if source is None else list(walk(source, _MOST_PARTS))
        is_array = any(last_name(part) in ("values", "to_numpy") for part in parts)
        return None if is_array or not any(is_made_by(p, "pandas.") for p in parts) else source
    axes = axis.elements if isinstance(axis, Collection) else [axis]
    is_over_samples = any(isinstance(entry, Constant) and entry.value == 0 for entry in axes)
    return source if is_over_samples else None


def _text_of(statistic: Value) -> str:
    """Return the expression of what a statistic is of, such as "X" in `X.mean(0)`."""
    match statistic:
        case Call(is_method=True, node=ast.Call(func=ast.Attribute(value=samples))):
            return ast.unparse(samples)
    return argument_text(statistic) if isinstance(statistic, Call) else ""
