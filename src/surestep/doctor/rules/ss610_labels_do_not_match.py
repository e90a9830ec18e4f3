"""Inputs and labels are shuffled apart, so a sample has the label of a different one.

Two shuffles draw two orders. Unless both start from the same state of the same generator, the
labels no longer belong to their inputs. Nothing fails: the lengths are right, and the model learns
to answer the mean.

Labels that are shuffled alone, as in a permutation test, are not reported.

Source: https://scikit-learn.org/stable/modules/generated/sklearn.utils.shuffle.html
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_made_by, options_of
from surestep.doctor.source.values import Call, Constant, Item, Value

SEVERITY = "error"
FIX = "Draw one order, such as torch.randperm(len(x)), and index the inputs and the labels with it."
_SHUFFLES = ("numpy.random.shuffle", "random.shuffle")
_ORDERS = ("torch.randperm", "numpy.random.permutation")
_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_CONVERSIONS = frozenset(
    "tensor as_tensor from_numpy array asarray stack to_numpy reset_index astype float long int to "
    "copy clone FloatTensor LongTensor Tensor".split()
)
_PAIRS = ("torch.utils.data.TensorDataset", "sklearn.model_selection.train_test_split")
_SEEDS = re.compile(r"seed|set_state|set_rng_state|setstate|RandomState|default_rng|Random$")


def check(program: Program) -> Iterator[Problem]:
    """Find pairs of inputs and labels that were brought into different orders."""
    for trace in program.traces:
        shuffles = [event for event in trace.events if _shuffled_by(event) is not None]
        for event in trace.events:
            pair = _find_pair(event)
            if pair is None:
                continue
            orders = [_find_order(side, shuffles) for side in pair]
            first, second = orders
            if first is None or second is None or first is second:
                continue
            if _is_seeded_between(trace, first, second):
                continue
            yield at_event(
                event,
                f"`{describe(pair[0])}` and `{describe(pair[1])}` are shuffled apart, by "
                f"`{describe(first)}` and by `{describe(second)}`.",
            )


def _find_pair(event: Event) -> tuple[Value, Value] | None:
    """Return inputs and labels that belong together from here on."""
    call = event.call
    if call is None or len(call.args) < 2 or call.has_unknown_arguments:
        return None
    is_fit = call.is_method and call.name in ("fit", "partial_fit")
    if call.path in _PAIRS or is_fit:
        return call.args[0], call.args[1]
    return None


def _shuffled_by(event: Event) -> Value | None:
    """Return what a call shuffles in place."""
    call = event.call
    if call is None or not call.args:
        return None
    is_generator = call.name == "shuffle" and is_made_by(call.receiver, *_GENERATORS)
    return call.args[0] if call.path in _SHUFFLES or is_generator else None


def _find_order(value: Value, shuffles: list[Event]) -> Call | None:
    """Return the call that drew the order of the samples of a value."""
    for _ in range(10):
        for event in shuffles:
            if _shuffled_by(event) is value and not event.branches:
                return event.call
        options = options_of(value)
        if len(options) != 1:
            return None
        value = options[0]
        if isinstance(value, Item):
            if isinstance(value.index, Call) and _draws_order(value.index):
                return value.index
            if isinstance(value.base, Call) and _draws_order(value.base):
                return value.base
            return None
        if not isinstance(value, Call):
            return None
        if _draws_order(value):
            return value
        inner = value.receiver if value.is_method else value.argument(0, "")
        if value.name not in _CONVERSIONS or inner is None:
            return None
        value = inner
    return None


def _draws_order(call: Call) -> bool:
    """Return whether a call brings what it is given into a new order."""
    if call.keywords.get("random_state") is not None or "generator" in call.keywords:
        return False
    if call.path in _ORDERS:
        return True
    if call.name == "permutation" and is_made_by(call.receiver, *_GENERATORS):
        return True
    if call.path in ("sklearn.utils.shuffle", "sklearn.model_selection.train_test_split"):
        shuffle = call.keywords.get("shuffle")
        return len(call.args) == 1 and shuffle is None
    fraction = call.keywords.get("frac")
    return call.name == "sample" and isinstance(fraction, Constant) and fraction.value == 1


def _is_seeded_between(trace: Trace, first: Call, second: Call) -> bool:
    """Return whether a generator may have been set back between two calls."""
    calls = [event.call for event in trace.events if event.call is not None]
    places = sorted(index for index, call in enumerate(calls) if call is first or call is second)
    if len(places) != 2:
        return True
    return any(_SEEDS.search(call.path) for call in calls[places[0] + 1 : places[1]])


def bad_two_shuffles() -> None:
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
    np.random.shuffle(X)
    np.random.shuffle(y)
    data = TensorDataset(torch.tensor(X), torch.tensor(y))


def bad_two_permutations() -> None:
    import torch
    from torch.utils.data import TensorDataset

    inputs, labels = torch.randn(20, 4), torch.randint(2, (20,))
    inputs = inputs[torch.randperm(20)]
    labels = labels[torch.randperm(20)]
    data = TensorDataset(inputs, labels)


def bad_two_splits() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 4)), np.arange(20) % 2
    X_train, X_test = train_test_split(X)
    y_train, y_test = train_test_split(y)
    model = LogisticRegression()
    model.fit(X_train, y_train)


def bad_generator() -> None:
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    class Data:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)
            self.X, self.y = np.ones((20, 4)), np.arange(20) % 2

        def load(self):
            x, y = self.rng.permutation(self.X), self.rng.permutation(self.y)
            return TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(y))

    Data().load()


def good_one_order() -> None:
    import torch
    from torch.utils.data import TensorDataset

    inputs, labels = torch.randn(20, 4), torch.randint(2, (20,))
    order = torch.randperm(20)
    data = TensorDataset(inputs[order], labels[order])


def good_same_state() -> None:
    import numpy as np
    import torch
    from torch.utils.data import TensorDataset

    X, y = np.random.randn(20, 4), np.random.randint(2, size=20)
    np.random.seed(0)
    np.random.shuffle(X)
    np.random.seed(0)
    np.random.shuffle(y)
    data = TensorDataset(torch.tensor(X), torch.tensor(y))


def good_together() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.utils import shuffle

    X, y = shuffle(np.ones((20, 4)), np.arange(20) % 2)
    X_train, X_test, y_train, y_test = train_test_split(X, y)
    LogisticRegression().fit(X_train, y_train)


def good_permutation_test() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    X, y = np.random.randn(20, 4), np.arange(20) % 2
    score = LogisticRegression().fit(X, y).score(X, y)
    chance = LogisticRegression().fit(X, np.random.permutation(y)).score(X, y)


def good_same_random_state() -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    X, y = np.ones((20, 4)), np.arange(20) % 2
    X_train, X_test = train_test_split(X, random_state=1)
    y_train, y_test = train_test_split(y, random_state=1)
    LogisticRegression().fit(X_train, y_train)
