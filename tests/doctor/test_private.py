"""Watch works with a torch that lacks the private names which it reads."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives
import torch.fx._symbolic_trace
import torch.utils._device
import torch.utils._python_dispatch
import torch.utils.data.dataloader
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from surestep.doctor import private
from surestep.doctor.rule import load_rules
from surestep.doctor.watch import functions
from surestep.doctor.watch.watch import WatchSession

NAMES = [
    (torch.fx._symbolic_trace, "is_fx_symbolic_tracing"),
    (torch.fx._symbolic_trace, "_is_fx_tracing_flag"),
    (torch._C, "_get_tracing_state"),
    (torch._C, "_functorch"),
    (torch._C._functorch, "peek_interpreter_stack"),
    (torch._C, "DisableTorchFunction"),
    (torch._C, "_len_torch_dispatch_stack"),
    (torch.utils._python_dispatch, "_disable_current_modes"),
    (torch.utils._device, "_device_constructors"),
    (torch.utils.data.dataloader, "_BaseDataLoaderIter"),
    (torch.distributed, "_functional_collectives"),
    (torch.nn.modules.batchnorm, "_BatchNorm"),
]
PRIVATE = re.compile(
    r"torch(\.\w+)*\.(_C\b|_[a-z])|from torch.* import .*\b_[A-Za-z]"
    r"|\._is_initial|\._init_scale|\._per_optimizer"
)


class Count(TorchDispatchMode):
    """A mode of a script, which the operations of the rules must not reach."""

    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def train():
    """Train with two mistakes: gradients are never zeroed, and the data is never shuffled."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.arange(64) // 32)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    count = Count()
    for _ in range(3):
        for x, y in DataLoader(data, batch_size=8):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
    with count:
        model(data.tensors[0]).sum()
    return [p.tolist() for p in model.parameters()], torch.rand(3).tolist(), count.calls


@pytest.fixture(params=NAMES, ids=lambda entry: entry[1])
def lacking(request, monkeypatch):
    """Read the private names of a torch without one of them, or two of which one is enough."""
    owner, name = request.param
    with monkeypatch.context() as patch:
        patch.delattr(owner, name, raising=False)  # torch 2.6 lacks the first
        if name == "is_fx_symbolic_tracing":
            patch.delattr(owner, "_is_fx_tracing_flag", raising=False)  # or torch 2.14
        if name == "_BatchNorm":  # others that only rules read, in one training
            patch.delattr(torch.nn.modules.instancenorm, "_InstanceNorm")
            patch.delattr(torch.nn.modules.dropout, "_DropoutNd")
            patch.delattr(torch, "_foreach_sub")
            patch.delattr(torch, "_foreach_div")
        if name == "_functional_collectives":
            patch.setitem(sys.modules, f"torch.distributed.{name}", None)
        importlib.reload(private)
    yield name
    importlib.reload(private)


def test_script_trains_the_same_and_its_mistakes_are_found(lacking):
    alone, results, watch = train(), [], WatchSession(load_rules())
    watch.run(lambda: results.append(train()))
    report = watch.report()
    assert results == [alone]
    assert report.failures == {}
    assert {"SS101", "SS601"} <= {finding.rule for finding in report.findings}


def test_traced_function_has_no_operations_of_the_rules(monkeypatch):
    if not hasattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag"):
        pytest.skip("this torch has no flag to use instead of the function")

    def softmax_of(x):
        return nn.functional.cross_entropy(torch.softmax(x, 1), torch.zeros(2).long())

    with monkeypatch.context() as patch:
        patch.delattr(torch.fx._symbolic_trace, "is_fx_symbolic_tracing", raising=False)
        importlib.reload(private)
    alone, traced = str(torch.fx.symbolic_trace(softmax_of).graph), []
    WatchSession(load_rules()).run(
        lambda: traced.append(str(torch.fx.symbolic_trace(softmax_of).graph))
    )
    importlib.reload(private)
    assert traced == [alone]


def test_collectives_are_wrapped_without_the_functional_ones(monkeypatch):
    monkeypatch.setattr(private, "functional_collectives", None)
    assert (torch.distributed, "all_reduce") in functions._list_collectives()


def test_without_versions_of_tensors_the_rules_that_need_none_find_mistakes(monkeypatch):
    def fail(tensor):
        raise AttributeError("_version")

    alone, results, watch = train(), [], WatchSession(load_rules())
    monkeypatch.setattr(torch.Tensor, "_version", property(fail), raising=False)
    watch.run(lambda: results.append(train()))
    report = watch.report()
    assert results == [alone]
    assert "SS101" in report.failures
    assert "SS601" in {finding.rule for finding in report.findings}


def test_scaler_without_private_names_has_no_stages_and_no_first_scale():
    scaler = torch.amp.GradScaler("cpu")
    assert (private.list_scaler_stages(scaler), private.has_first_scale(scaler)) == ({}, True)
    assert (private.list_scaler_stages(object()), private.has_first_scale(object())) == (
        None,
        False,
    )
    assert not private.has_first_scale(torch.amp.GradScaler("cpu", init_scale=8.0))


@pytest.mark.parametrize("knows", [True, False])
def test_clipping_is_not_judged_if_the_stages_of_a_scaler_are_not_known(monkeypatch, knows):
    def clip_before_unscaling():
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(30):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(4, 2)).sum()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    if not knows:
        monkeypatch.setattr(private, "list_scaler_stages", lambda scaler: None)
    watch = WatchSession(load_rules())
    watch.run(clip_before_unscaling)
    found = {finding.rule for finding in watch.report().findings}
    assert ("SS105" in found) == knows


def test_private_names_of_torch_are_read_in_one_module():
    folder = Path(private.__file__).parent
    found = {
        path.name: lines
        for path in folder.rglob("*.py")
        if (lines := [line for line in path.read_text().splitlines() if PRIVATE.search(line)])
    }
    assert found.keys() == {"private.py"}, found
