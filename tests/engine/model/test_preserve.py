"""A snapshot of buffers restores what a skipped step has changed, and nothing of one taken."""

import pytest
import torch
from torch import nn

from surestep.engine.buffers import every_parameter
from surestep.engine.model.attributes import Attribute
from surestep.engine.model.preserve import BufferSnapshot, preserve_buffers
from surestep.engine.step_outcome import StepOutcome

OUTCOMES = {
    "taken": StepOutcome(True),
    "taken, by the device": StepOutcome(True, torch.zeros(())),
    "skipped": StepOutcome(False),
    "skipped, by the device": StepOutcome(True, torch.tensor(torch.nan)),
}
outcomes = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)


class Net(nn.Module):
    """A model with buffers that a forward writes, fills, clears, replaces, widens and shares."""

    def __init__(self):
        super().__init__()
        self.weight, self.calls, self.is_set = nn.Parameter(torch.ones(2)), 0, False
        for name in ("written", "replaced", "wider", "cleared"):
            self.register_buffer(name, torch.ones(2))
        self.register_buffer("filled", None)
        self.register_buffer("table", torch.eye(2).to_sparse())
        self.part = nn.Module()
        self.part.register_buffer("shared", self.wider)

    def forward(self):
        self.calls += 1
        self.is_set = True  # a number beside weights that change
        with torch.no_grad():
            self.weight.mul_(2)
        self.written.add_(1)
        self.replaced = self.replaced + 1
        self.wider = self.part.shared = torch.zeros(3)
        self.filled, self.cleared = torch.zeros(1), None
        self.table = self.table * 2


def values_of(net):
    buffers = {name: part._buffers[key] for name, part, key in slots_of(net)}
    values = {n: None if b is None else b.to_dense().tolist() for n, b in buffers.items()}
    own = {"weight": net.weight.tolist(), "calls": net.calls, "is_set": net.is_set}
    return {**values, **own}


def slots_of(net):
    for path, part in net.named_modules():
        yield from ((f"{path}.{key}", part, key) for key in part._buffers)


def snapshot_of(net):
    calls = Attribute("model.calls", vars(net), "calls", net)
    snapshot = BufferSnapshot(net, writes=[*every_parameter(net), calls])
    snapshot.save()
    return snapshot


@outcomes
def test_skipped_step_restores_all_that_its_forward_changed(outcome):
    net = Net()
    before, snapshot = values_of(net), snapshot_of(net)
    net()
    after = values_of(net)
    assert all(after[name] != before[name] for name in before)
    snapshot.restore(outcome)
    is_taken = outcome.nonfinite_flag is None and outcome.took_step
    is_taken |= outcome.nonfinite_flag is not None and bool(outcome.nonfinite_flag == 0)
    assert values_of(net) == (after if is_taken else before)
    if not is_taken:
        assert net.wider is net.part.shared  # still one tensor


def test_no_attribute_is_restored_that_is_not_kept_any_more():
    net = Net()
    snapshot = snapshot_of(net)
    snapshot.keep_attributes([])
    snapshot.keep_only([])
    net()
    snapshot.restore(StepOutcome(False))
    assert (net.calls, net.weight.tolist(), net.written.tolist()) == (1, [2, 2], [1, 1])


def test_buffers_are_the_same_objects_after_an_evaluation():
    net = Net()
    before, buffers = values_of(net), dict(net._buffers)
    with preserve_buffers(net):
        net()
    found = values_of(net)
    assert {name: found[name] for name in before if name.startswith(".")} == {
        name: value for name, value in before.items() if name.startswith(".")
    }
    assert all(net._buffers[name] is buffer for name, buffer in buffers.items())
