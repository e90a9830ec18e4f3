"""A snapshot of attributes notices every kind of change, and restores the same objects."""

from collections import OrderedDict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from surestep.engine.model.attribute_writes import AttributeWrites, Call
from surestep.engine.model.attributes import ObjectSnapshot, preserve_attributes


class Net(nn.Linear):
    """A model with an attribute of each kind."""

    def __init__(self):
        super().__init__(2, 2)
        self.n, self.flag, self.name, self.nothing = 1, True, "a", None
        self.scale, self.seen = torch.ones(2), np.ones(2)
        self.hist, self.nested = [1.0], {"a": [1], "b": [2]}
        self.sums = OrderedDict(a=1, b=1)
        self.kinds, self.recent = {1, 2}, deque([1], maxlen=2)
        self.row = torch.zeros(1).expand(3)
        self.config = SimpleNamespace(step=0)


CHANGES = {
    "n": lambda net: setattr(net, "n", 2),
    "n (type)": lambda net: setattr(net, "n", 1.0),
    "flag": lambda net: setattr(net, "flag", 1),
    "name": lambda net: setattr(net, "name", "b"),
    "nothing": lambda net: setattr(net, "nothing", 0),
    "nothing (deleted)": lambda net: delattr(net, "nothing"),
    "scale": lambda net: net.scale.mul_(2),
    "scale (replaced)": lambda net: setattr(net, "scale", net.scale.clone()),
    "seen": lambda net: np.multiply(net.seen, 2, out=net.seen),
    "hist": lambda net: net.hist.append(2.0),
    "hist (first)": lambda net: net.hist.__setitem__(0, 3.0),
    "nested": lambda net: net.nested["b"].append(3),
    "nested (key)": lambda net: net.nested.pop("a"),
    "sums (order)": lambda net: net.sums.move_to_end("a"),
    "sums (value)": lambda net: net.sums.update(b=5),
    "kinds (more)": lambda net: net.kinds.add(3),
    "kinds (fewer)": lambda net: net.kinds.discard(1),
    "recent": lambda net: net.recent.extend([2, 3]),
    "config.step": lambda net: setattr(net.config, "step", 1),
    "added": lambda net: setattr(net, "added", 1),
    "config.added": lambda net: setattr(net.config, "added", None),
}


def values_of(net):
    own = {name: value for name, value in vars(net).items() if name not in vars(nn.Module())}
    inner = {name: f"{vars(own[name])}" for name in ("config",)}
    shown = {name: f"{type(value).__name__} {value}" for name, value in own.items()}
    return {**shown, **inner}, {name: id(value) for name, value in own.items()}


@pytest.mark.parametrize("way", ["snapshot", "select", "preserve"])
@pytest.mark.parametrize("change", CHANGES)
def test_change_of_every_kind_is_noticed_and_restored(change, way):
    net = Net()
    before = values_of(net)
    snapshot = ObjectSnapshot({"model": net})
    assert snapshot.changed() == []
    if way == "preserve":
        with preserve_attributes(net):
            CHANGES[change](net)
            assert values_of(net) != before
    else:
        CHANGES[change](net)
        changed = snapshot.changed()
        assert [one.path for one in changed] == [f"model.{change.partition(' ')[0]}"]
        (snapshot.select(changed) if way == "select" else snapshot).restore()
    assert values_of(net) == before


def add_hook(net):
    net.register_forward_hook(lambda *_: None)


def add_layer(net):
    net.extra = nn.Linear(1, 1)


@pytest.mark.parametrize("add", [add_hook, add_layer, lambda net: net.register_buffer("b", None)])
def test_nothing_is_restored_of_a_model_that_got_a_layer_a_buffer_or_a_hook(add):
    """An attribute may describe it."""
    net = Net()
    snapshot = ObjectSnapshot({"model": net})
    with preserve_attributes(net):
        add(net)
        net.n = 2
    assert net.n == 2
    assert snapshot.changed() == []


def test_written_memory_of_an_expanded_tensor_is_left_to_its_base():
    net = Net()
    with preserve_attributes(net):
        net.row[0] = 7
    assert net.row.tolist() == [7, 7, 7]


class Counting(nn.Module):
    """Depends on one counter from the first call on, and keeps another for later."""

    def __init__(self):
        super().__init__()
        self.calls, self.inner = 0, SimpleNamespace(later=0)

    def forward(self):
        self.calls += 1
        self.inner.later += 1
        return [torch.tensor(float(self.calls))]


def writes_of(net):
    writes = AttributeWrites({"model": net})
    before = writes.snapshot()
    net()
    writes.find(before, [Call(net)])
    return writes


def test_attributes_that_a_forward_changes_are_saved_and_loaded():
    net = Counting()
    writes = writes_of(net)
    assert [slot.path for slot in writes.slots] == ["model.calls", "model.inner.later"]
    assert [slot.path for slot in writes.dependent] == ["model.calls"]
    writes.find(writes.snapshot(), [Call(net)])  # nothing more
    before = writes.snapshot()
    net()
    writes.find(before, [Call(net)])  # the same again
    assert [slot.path for slot in writes.slots] == ["model.calls", "model.inner.later"]
    assert [slot.path for slot in writes.dependent] == ["model.calls"]
    saved = writes.state_dict()
    assert {path: entry["value"] for path, entry in saved.items()} == {
        "model.calls": 2,
        "model.inner.later": 2,
    }
    other = AttributeWrites({"model": Counting()})  # which has taken no step yet
    other.load_state_dict({**saved, "loss.calls": saved["model.calls"]})  # for weights alone
    model = other.codes["model"]
    assert (model.calls, model.inner.later) == (2, 2)
    writes.load_state_dict({})
    assert (net.calls, net.inner.later) == (0, 0)  # the first values


def test_object_that_cannot_be_saved_is_named_once():
    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = 1 + 0j

        def forward(self):
            self.value = self.value + 1
            return [torch.tensor(self.value.real)]

    writes = writes_of(Opaque())
    (notice,) = writes.take_notices()
    assert "model.value, a complex" in notice
    assert writes.take_notices() == []
    assert writes.state_dict() == {}
