"""The test data decides which model is kept.

If the epoch with the best result on the test data is saved, its result is too good: it is the best
of many noisy numbers, and does not estimate the result on new data any more. The more epochs or
settings are compared, the larger the error. Nothing fails. It is the same if the test data decides
when training stops, or when the learning rate falls.

Ignore it if the data is for validation and only its name is wrong, and other data is tested later.
Only data that is named as test data, such as `test_loader`, is reported.

Source: https://scikit-learn.org/stable/modules/cross_validation.html

Wrong:

    import io

    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset


    def evaluate(model, loader):
        correct, total = 0, 0
        with torch.inference_mode():
            for x, y in loader:
                correct += (model(x).argmax(1) == y).sum().item()
                total += len(x)
        return correct / total


    train_data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
    test_data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
    train_loader = DataLoader(train_data, batch_size=8, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=8)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best, file = 0.0, io.BytesIO()
    for _ in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = evaluate(model, test_loader)
        if accuracy > best:
            best = accuracy
            file.seek(0)
            torch.save(model.state_dict(), file)

Right:

    import io

    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset


    def evaluate(model, loader):
        with torch.inference_mode():
            losses = [F.mse_loss(model(x), y, reduction="sum").item() for x, y in loader]
        return sum(losses)


    def make_loader(count, shuffle=False):
        data = TensorDataset(torch.randn(count, 4), torch.randn(count, 1))
        return DataLoader(data, batch_size=8, shuffle=shuffle)


    train_loader, val_loader, test_loader = make_loader(64, True), make_loader(16), make_loader(16)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best, file = float("inf"), io.BytesIO()
    for _ in range(3):
        for x, y in train_loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        loss = evaluate(model, val_loader)
        if loss < best:
            best = loss
            file.seek(0)
            torch.save(model.state_dict(), file)
    print(evaluate(model, test_loader))
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    describe,
    find_actions,
    is_made_by,
    is_scheduler,
    options_of,
)
from surestep.doctor.source.values import (
    Call,
    Element,
    Instance,
    Operation,
    Unknown,
    Value,
    last_name,
    walk,
)

SEVERITY = "warning"
FIX = "Choose the model by validation data, and evaluate the test data once, after training."
_TEST = re.compile(r"(^|_)test(_|\d|$|loader|set|data|dl|ds)", re.IGNORECASE)
_VALIDATION = re.compile(r"val|dev|holdout", re.IGNORECASE)
_DATA = re.compile(r"loader|(^|_)(dl|data|dataset)(_|\d|$)", re.IGNORECASE)
_STOPPER = re.compile(r"early_?stop(?!\w*(logger|printer|plotter|reporter)$)", re.IGNORECASE)
_COMPARISONS = ("<", ">", "<=", ">=")


def check(program: Program) -> Iterator[Problem]:
    """Find comparisons of test results that decide whether a state is kept."""
    for trace in program.traces:
        steps = [a.event for a in find_actions(trace) if a.is_step]
        stoppers: set[Value | None] = set()
        for event in trace.events:
            if event.loop is None or not any(event.loop in step.loops for step in steps):
                continue
            value, call = event.value, event.call
            if call is not None and _is_given_results(call):
                names = [_find_test_data(trace, given) for given in call.args]
                for name in filter(None, names):
                    yield at_event(event, f"`{describe(value)}` controls training by `{name}`.")
            elif event.kind == "test" and _is_comparison(value):
                name = _find_test_data(trace, value)
                stopper = _find_stopper(event)
                is_new = stopper is not None and stopper not in stoppers
                if name and (is_new or _decides_state(trace, value)):
                    stoppers.add(stopper)
                    yield at_event(event, f"`{describe(value)}` chooses the model by `{name}`.")


def _is_given_results(call: Call) -> bool:
    """Return whether a call gives the results of an epoch to what stops, or slows, training."""
    if call.path == ".step" and is_scheduler(call.receiver):
        return True
    stoppers = options_of(call.receiver) if call.is_method or call.path == "()" else ()
    return bool(stoppers) and all(_STOPPER.search(_class_of(stopper)) for stopper in stoppers)


def _class_of(value: Value) -> str:
    return last_name(value.cls if isinstance(value, Instance) else value)


def _find_stopper(event: Event) -> Value | None:
    """Return the object that stops training early, if an event is in a method of it.

    If the object itself is called, that call is reported.
    """
    method = event.stack[-1] if event.stack else None
    owner = None if method is None or method.name == "__call__" else method.owner
    return owner if owner is not None and _STOPPER.search(_class_of(owner)) else None


def _is_comparison(value: Value) -> bool:
    return isinstance(value, Operation) and value.operator in _COMPARISONS


def _decides_state(trace: Trace, test: Value) -> bool:
    return any(_keeps_state(event, test) for event in trace.events)


def _keeps_state(event: Event, test: Value) -> bool:
    """Return whether an event keeps the state of a model if a condition is true."""
    call = event.call
    is_kept = call is not None and (call.path == "torch.save" or call.name == "state_dict")
    return is_kept and any(b.test is test and b.is_taken for b in event.branches)


def _find_test_data(trace: Trace, value: Value) -> str:
    """Return the name of the test data from which alone a value was computed; "" without one."""
    names: set[str] = set()
    for part in walk(value):
        if not isinstance(part, Element):
            continue
        for data in options_of(part.of):
            if isinstance(data, Unknown) and _DATA.search(data.name):
                names.add(data.name)
            elif is_made_by(data, "torch.utils.data.DataLoader"):
                names |= _names_of(trace, data) or {""}
    is_test = names and all(_TEST.search(n) and not _VALIDATION.search(n) for n in names)
    return min(names) if is_test else ""


def _names_of(trace: Trace, value: Value) -> set[str]:
    """Return the names to which a value is assigned."""
    stores = (event for event in trace.events if event.kind == "store" and event.value is value)
    names = (getattr(e.target, "id", getattr(e.target, "attr", "")) for e in stores)
    return {name for name in names if name}
