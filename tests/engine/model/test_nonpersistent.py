import torch
from torch import nn

from surestep.engine.buffers import (
    changed_buffers,
    initial_values,
    restore_buffers,
)


def model():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Identity())
    net[1].register_buffer("table", torch.arange(3.0), persistent=False)
    net[1].register_buffer("calls", torch.zeros(()), persistent=False)
    net[1].register_buffer("none", None, persistent=False)
    return net


def test_only_changed_nonpersistent_buffers_are_found():
    net = model()
    before = initial_values(net)
    assert before.keys() == {"1.table", "1.calls", "1.none"}
    assert before["1.none"] is None
    assert changed_buffers(net, before) == {}
    net[0].running_mean += 1
    net[1].calls += 1
    net[1].none = torch.zeros(())
    assert changed_buffers(net, before).keys() == {"1.calls", "1.none"}


def test_buffers_that_were_not_saved_are_restored_to_their_initial_values():
    net = model()
    before = initial_values(net)
    net[1].calls += 5
    net[1].table = torch.arange(6.0)
    restore_buffers(net, before, {"1.calls": torch.tensor(2.0)})
    assert (float(net[1].calls), net[1].table.tolist()) == (2.0, [0.0, 1.0, 2.0])
    before["1.table"] += 1  # the model has a copy
    assert net[1].table.tolist() == [0.0, 1.0, 2.0]


def test_grown_buffer_is_restored_at_its_size():
    net = model()
    before = initial_values(net)
    restore_buffers(net, before, {"1.table": torch.arange(6.0)})
    assert net[1].table.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_buffer_of_two_modules_stays_shared_only_if_its_values_are_equal():
    def make():
        net = nn.Sequential(nn.Identity(), nn.Identity())
        for part in net:
            part.register_buffer("table", table, persistent=False)
        return net

    table = torch.arange(3.0)
    net = make()
    long, other = torch.arange(6.0), torch.ones(3)
    restore_buffers(net, initial_values(net), {"0.table": long, "1.table": long.clone()})
    assert net[0].table is net[1].table
    assert torch.equal(net[0].table, long)
    net = make()
    restore_buffers(net, initial_values(net), {"0.table": other})
    assert torch.equal(net[0].table, other)
    assert torch.equal(net[1].table, torch.arange(3.0))
