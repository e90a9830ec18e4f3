"""Train on a device without float64, as MPS is: a stub, whose tensors are on the host.

The device is torch's spare one, renamed for the rest of the process. Every tensor on
it is a wrapper; an operation whose result would be float64 raises TypeError, as on MPS.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from surestep import losses
from surestep.base.errors import NonFiniteError
from surestep.engine import device as devices
from surestep.engine.plan.context import PlanContext
from surestep.engine.resolve import run as run_options
from tests import tiny

KIND = "stub"


class Stub(torch.Tensor):
    """A tensor on the stub."""

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            dtype=host.dtype,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            device=torch.device(KIND, 0),
        )

    def __init__(self, host):
        self.host = host

    def __repr__(self, **options):
        return f"Stub({self.host})"

    def untyped_storage(self):
        return self.host.untyped_storage()

    def data_ptr(self):
        return self.host.data_ptr()

    def tolist(self):
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})


class Factories(TorchDispatchMode):
    """Makes tensors on the stub, and copies others to it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return call(func, args, kwargs or {})


def call(func, args, kwargs):
    """Run an operation on the host; its results are where torch would have them."""
    on_stub = False

    def to_host(value):
        nonlocal on_stub
        on_stub = on_stub or isinstance(value, Stub)
        return value.host if isinstance(value, Stub) else value

    def from_host(value):
        if not (isinstance(value, torch.Tensor) and on_stub) or isinstance(value, Stub):
            return value
        if value.dtype is torch.float64:
            raise TypeError(f"{func}: the stub has no float64")
        return Stub(value)

    args, kwargs = tree_map(to_host, (args, kwargs))
    if (wanted := kwargs.get("device")) is not None:
        on_stub = torch.device(wanted).type == KIND
        kwargs = {**kwargs, "device": torch.device("cpu")}
    return tree_map(from_host, func(*args, **kwargs))


class Module(backend_registration._DummyBackendModule):
    """What torch expects of a device."""

    def get_rng_state(self, device=None):
        return torch.default_generator.get_state()

    def set_rng_state(self, state, device=None):
        pass


def register():
    """Make the stub a device that surestep accepts as it accepts MPS."""
    backend_registration._setup_privateuseone_for_python_backend(KIND, Module())
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.accelerator.synchronize = lambda device=None: None
    devices.WITHOUT_FLOAT64 = (KIND,)
    run_options._is_available = lambda ctx, name: True
    PlanContext.device = property(lambda self: "mps")


def train(parts=None, **options):
    with tempfile.TemporaryDirectory() as folder, Factories():
        options = {"device": KIND, "max_steps": 3, **options}
        run = Path(folder) / "run"
        tiny.fit(run, {"val": tiny.data(9), **(parts or {})}, **options)


def main():
    register()
    accuracy = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()}
    x = torch.randn(24, tiny.FEATURES)
    numbers = {"train": (x, x[:, 0]), "val": (x, x[:, 0])}
    log = {"every": "1 step", "per_layer": True}
    train({"metrics": accuracy}, average={"kind": "ema"}, logging=log)
    train({"loss": losses.multiclass(weight=[1.0, 2.0, 3.0])}, on_nonfinite="skip")
    train({"loss": losses.multiclass(weight="balanced")}, optim={"name": "sgd", "momentum": 0.9})
    train({"loss": nn.CrossEntropyLoss(weight=torch.ones(tiny.CLASSES))}, clip_value=0.1)
    train({"loss": losses.quantile(quantiles=(0.1, 0.5, 0.9)), **numbers})
    train(logging={"histograms": "1 step", "trackers": ("tensorboard",)})
    try:
        train(optim={"name": "sgd", "lr": 1e38})
    except NonFiniteError:
        print("trained without float64", file=sys.stdout)


if __name__ == "__main__":
    main()
