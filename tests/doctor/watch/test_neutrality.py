"""What a script asks of torch is the same under watch: devices, graphs, modes, transforms."""

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.watch import WatchSession
from tests.doctor.watch.test_hooks import train


def compare_watched(function):
    """Return what a function returns alone and under watch; no rule fails."""
    alone = function()
    results, watch = [], WatchSession(load_rules())
    watch.run(lambda: results.append(function()))
    report = watch.report()
    assert (report.failures, report.stopped_at) == ({}, None)
    return alone, results[0]


def test_default_device_is_kept():
    def make():
        with torch.device("meta"):
            devices = [torch.rand(2).device, torch.randn(2).device, torch.randperm(2).device]
        return [device.type for device in devices]

    assert compare_watched(make) == (["meta"] * 3, ["meta"] * 3)
    # As in a new process: torch looks for the functions that make tensors once.
    forget = torch.utils._device._device_constructors.cache_clear
    forget()
    devices = []
    WatchSession(load_rules()).run(lambda: devices.extend(make()))
    forget()
    assert devices == ["meta"] * 3


def softmax_of(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(torch.softmax(x, 1), torch.zeros(2).long())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_scripts_are_compiled_from_the_functions_of_torch():
    alone, watched = compare_watched(lambda: str(torch.jit.script(softmax_of).graph))
    assert alone == watched


def test_traced_functions_have_no_operations_of_the_rules():
    def trace():
        symbolic = torch.fx.symbolic_trace(softmax_of)
        inputs = torch.zeros(2, 3)
        made = make_fx(softmax_of)(inputs)
        return [[node.name for node in traced.graph.nodes] for traced in (symbolic, made)]

    alone, watched = compare_watched(trace)
    assert alone == watched


def test_modes_of_the_script_see_no_operations_of_the_rules():
    class Operations(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __init__(self):
            self.names = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.names.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    def count():
        with Operations() as operations, Functions() as functions:
            train(3)
        return operations.names, functions.names

    alone, watched = compare_watched(count)
    assert alone[0] == watched[0]
    assert alone[1] == watched[1]


def test_transforms_of_functions_disable_no_rule():
    def transform():
        model = nn.Linear(3, 1)
        weights = dict(model.named_parameters())

        def loss(weights, x):
            output = torch.func.functional_call(model, weights, (x,))
            return nn.functional.mse_loss(output, torch.zeros(1))

        torch.manual_seed(0)
        per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
        return per_sample(weights, torch.randn(5, 3))["bias"].shape

    assert compare_watched(transform) == ((5, 1), (5, 1))


def test_module_and_optimizer_without_a_hash_train_as_alone():
    class Odd(nn.Linear):
        def __eq__(self, other):
            raise RuntimeError("not comparable")

    class OddOptimizer(torch.optim.SGD):
        __hash__ = None

    def fit():
        torch.manual_seed(0)
        model = Odd(2, 1)
        Odd.__hash__ = nn.Module.__hash__
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        odd = OddOptimizer(model.parameters(), lr=0.1)
        for chosen in (optimizer, odd, optimizer):
            model(torch.ones(1, 2)).sum().backward()
            chosen.step()
        return model.weight.tolist()

    alone, results, watch = fit(), [], WatchSession(load_rules())
    watch.run(lambda: results.append(fit()))
    assert results == [alone]
    report = watch.report()
    assert (report.steps, report.stopped_at) == (3, None)
    assert not {"SS101", "hooks"} & report.failures.keys(), report.failures


def test_models_and_optimizers_that_are_dropped_are_freed():
    def fit_several():
        kept = []
        for _ in range(12):
            model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(8, 4)).pow(2).mean().backward()
                optimizer.step()
            kept += [weakref.ref(found) for found in (model, optimizer, *model.parameters())]
        del model, optimizer
        gc.collect()
        return sum(found() is not None for found in kept)

    assert compare_watched(fit_several) == (0, 0)


def test_warnings_name_the_same_lines():
    def warn():
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedule.step()  # before the optimizer
            output = model(torch.ones(8, 4))
            nn.functional.mse_loss(output, torch.zeros(8, 1)).backward()
            nn.functional.softmax(output.detach())
            optimizer.step()
        return [(found.filename, found.lineno) for found in caught]

    alone, watched = compare_watched(warn)
    assert len(alone) == 3
    assert __file__ in {file for file, _ in alone}  # torch 2.6 names lines of torch too
    assert alone == watched


def test_error_of_a_model_reaches_the_script_when_the_seen_passes_end():
    class Model(nn.Linear):
        def forward(self, x):
            raise ValueError("mine")

    def evaluate():
        model = Model(1, 1).eval()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(30):
            optimizer.step()
        model.eval()
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
        for _ in range(9):
            with pytest.raises(ValueError, match="mine"):
                model(torch.ones(1, 1))
        handle.remove()

    WatchSession(load_rules()).run(evaluate)


def test_losses_may_be_edges_of_the_graph():
    weight, watching = nn.Parameter(torch.ones(2)), WatchSession(load_rules())
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        pytest.skip("torch 2.6 takes no edges")

    def step():
        edge = torch.autograd.graph.get_gradient_edge(weight.sum())
        torch.autograd.backward(edge)
        torch.autograd.backward([edge])
        torch.optim.SGD([weight], 0.5).step()

    watching.run(step)
    assert weight.tolist() == [0, 0]
    assert watching.report().stopped_at is None


def test_losses_may_come_from_an_iterator():
    weight, watching = nn.Parameter(torch.ones(2)), WatchSession(load_rules())
    watching.run(lambda: torch.autograd.backward(loss for loss in [weight.sum(), weight.prod()]))
    assert weight.grad.tolist() == [2, 2]
