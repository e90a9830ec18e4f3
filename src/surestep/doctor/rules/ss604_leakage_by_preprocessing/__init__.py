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

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event, at_node
from surestep.doctor.rules.ss604_leakage_by_preprocessing.preprocessing import (
    FITS,
    find_learner,
    learns,
)
from surestep.doctor.rules.ss604_leakage_by_preprocessing.standardizations import (
    find_standardizations,
)
from surestep.doctor.source.splits import (
    DataSplit,
    argument_text,
    find_splits,
    is_held_out,
    is_training_name,
    is_training_part,
)
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_same
from surestep.doctor.source.values import Call, Instance, Item, Value, last_name, walk

SEVERITY = "error"
FIX = "Split first, fit on the training part only, and transform the others; or use a Pipeline."
_LEARNS = frozenset(
    "fit partial_fit fit_predict predict predict_proba decision_function score tensor as_tensor "
    "from_numpy Tensor FloatTensor TensorDataset DataLoader DMatrix Dataset Pool () train".split()
)
_SUBSET = re.compile(r"train|mask|idx|index|==|<|>|:\s*\w", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find preprocessing that is fitted on data that is split later."""
    for trace in program.traces:
        splits = find_splits(trace)
        if splits:
            yield from _check_standardizations(trace, splits)
            fits = [(event, call) for event, call in trace.calls if learns(call)]
            yield from _check_refits(trace, splits, fits)
            for fit, call in fits:
                if is_training_part(call.args[0], argument_text(call)):
                    continue
                later = [s for s in splits if trace.index(s.event) > trace.index(fit)]
                split = next((s for s in later if _leaks(fit, call, s, trace)), None)
                if split is not None:
                    yield _report(fit, split, "splits them afterwards")
                    continue
                split = next((s for s in splits if _leaks_into_parts(fit, call, s, trace)), None)
                if split is not None:
                    yield _report(fit, split, "splits them for an evaluation")


def _check_standardizations(trace: Trace, splits: list[DataSplit]) -> Iterator[Problem]:
    reported: set[Value] = set()
    for found in find_standardizations(trace):
        if found.statistic in reported or is_training_part(found.source, found.text):
            continue
        for split in splits:
            is_later = trace.index(split.event) >= trace.index(found.event)
            if is_later and _has_same_samples(found.samples, found.source):
                given = (found.value, found.text, split, trace)
                leaks = any(_holds(data, *given) for data in split.data)
            else:
                leaks = _is_part_of(found.samples, split) and any(
                    _has_same_samples(data, found.source) for data in split.data
                )
            if leaks:
                reported.add(found.statistic)
                line = split.event.line
                yield at_node(
                    found.value.node or found.event.node,
                    found.value.file or found.event.file,
                    f"`{describe(found.statistic)}` is computed from all samples, also from those "
                    f"that line {line} keeps for an evaluation.",
                    {"split_line": line},
                )
                break


def _check_refits(
    trace: Trace, splits: list[DataSplit], fits: list[tuple[Event, Call]]
) -> Iterator[Problem]:
    """Find what learned from a part for training, and learns from one for evaluation again."""
    for fit, call in fits:
        is_for_evaluation = is_held_out(argument_text(call).partition("[")[0])
        if call.name not in FITS or not is_for_evaluation or not _is_learned_from(trace, call):
            continue
        learner, path = find_learner(call.receiver), getattr(call.receiver, "path", "")
        for split in splits:
            others = [other for _, other in fits if _is_part_of(other.args[0], split)]
            is_again = any(
                is_training_name(argument_text(other))
                and (find_learner(other.receiver) is learner or _has_path(other.receiver, path))
                for other in others
            )
            if is_again and call in others:
                yield at_event(
                    fit,
                    f"`{describe(call)}` learns from samples for evaluation, so their features "
                    "are not transformed as those for training.",
                )
                break


def _has_path(value: Value | None, path: str) -> bool:
    return isinstance(value, Call) and value.path == path


def _report(fit: Event, split: DataSplit, what: str) -> Problem:
    line = split.event.line
    message = f"`{fit.text}` learns from all samples, and line {line} {what}."
    return at_event(fit, message, split_line=line)


def _leaks(fit: Event, call: Call, split: DataSplit, trace: Trace) -> bool:
    """Return whether a split is of data that a preprocessing learned from."""
    if call.name == "fit":
        return _leaks_by_transform(fit, call, split, trace)
    text = argument_text(call)
    return any(_holds(data, call, text, split, trace) for data in split.data)


def _holds(data: Value, result: Value, text: str, split: DataSplit, trace: Trace) -> bool:
    """Return whether data was made from a result of a text, or the result was stored in it."""
    parts = [part for source in _contents(data) for part in walk(source)]
    if any(part is result for part in parts):
        return True
    for event in trace.events:
        if event is split.event:
            return False
        is_in_place = event.kind == "store" and event.base is not None
        if is_in_place and any(part is result for part in walk(event.value)):
            if _SUBSET.search(text):
                return False
            table = _table_of(event.base)
            return any(part is table for part in parts)
    return False


def _contents(data: Value) -> list[Value]:
    """Return data, and what datasets of the project hold."""
    datasets = [part for part in walk(data) if isinstance(part, Instance)]
    return [data, *(value for source in datasets for value in source.attributes.values())]


def _table_of(value: Value | None) -> Value | None:
    """Return the table that is assigned to: `df` for `df.loc[...] = ...` too."""
    if value is not None and last_name(value) in ("loc", "iloc") and value.inputs:
        return value.inputs[0]
    return value


def _leaks_by_transform(event: Event, fit: Call, split: DataSplit, trace: Trace) -> bool:
    """Return whether what `fit` got is transformed and split, in either order."""
    fitted, text = fit.args[0], argument_text(fit)
    for later in trace.events[trace.index(event) + 1 :]:
        call = later.call
        if call is None or find_learner(call.receiver) is not find_learner(fit.receiver):
            continue
        if call.name in ("fit", *FITS):
            return False
        given = call.argument(0, "X")
        if call.name != "transform" or given is None:
            continue
        if is_same(given, fitted) or argument_text(call) == text:
            if any(_holds(data, call, text, split, trace) for data in split.data):
                return True
        elif _is_part_of(given, split) and any(_has_same_samples(d, fitted) for d in split.data):
            return True
    return False


def _leaks_into_parts(fit: Event, call: Call, split: DataSplit, trace: Trace) -> bool:
    """Return whether parts of a split are transformed by, or taken from, what all data fitted."""
    if not any(_has_same_samples(data, call.args[0]) for data in split.data):
        return False
    learner = find_learner(call.receiver)
    for event in trace.events[trace.index(fit) + 1 :]:
        other = event.call
        if other is not None and other.is_method and find_learner(other.receiver) is learner:
            if other.name in ("fit", "partial_fit", *FITS):
                return False
            given = other.argument(0, "X")
            is_part = given is not None and _is_part_of(given, split)
            if other.name == "transform" and is_part and _is_learned_from(trace, other):
                return True
        values = (event.value, *event.value.inputs)
        if call.name == "fit_transform" and any(_is_fold(v, call, split) for v in values):
            return True
    return False


def _is_learned_from(trace: Trace, samples: Call) -> bool:
    """Return whether a model or a dataset gets samples; others may only be shown."""
    return any(
        call.name in _LEARNS
        and any(part is samples for given in call.inputs for part in walk(given))
        for _, call in trace.calls
    )


def _has_same_samples(a: Value, b: Value) -> bool:
    """Return whether two values are the same data, or the same columns of a table."""
    match a, b:
        case Item(node=ast.AST() as x, base=p), Item(node=ast.AST() as y, base=q) if is_same(p, q):
            return ast.unparse(x) == ast.unparse(y)
    return is_same(a, b)


def _is_fold(value: Value, result: Call, split: DataSplit) -> bool:
    """Return whether a value is a part of a result for one fold: `scaled[test]`."""
    return (
        isinstance(value, Item)
        and any(part is split.event.value for part in walk(value.index))
        and any(part is result for part in walk(value.base))
    )


def _is_part_of(value: Value, split: DataSplit) -> bool:
    """Return whether a value is a result of a split, or what the indices of a fold select."""
    made = split.event.value
    return any(
        part.base is made
        or any(index is made for index in walk(part.index))
        or _is_slice(part, split)
        for part in walk(value)
        if isinstance(part, Item)
    )


def _is_slice(value: Item, split: DataSplit) -> bool:
    """Return whether a value is `X[:n]` of data that is split by slices."""
    is_slice = isinstance(value.node, ast.Subscript) and isinstance(value.node.slice, ast.Slice)
    return is_slice and split.event.kind == "store" and value.base is split.data[0]
