"""What the programs of this folder share: the comparison, and options as a plain loop has them."""

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import surestep
from surestep.trainer.session import Session

OPENED: list[Session] = []  # closed when the test ends
TOLERANCE = {
    torch.float64: 1e-12,  # of the largest value of a tensor
    torch.float32: 2e-6,
    torch.complex64: 2e-6,
    torch.complex128: 1e-12,
}


def assert_same(plain: Any, ours: Any, *, exact: bool = False, where: str = "") -> None:
    """Fail at the first value that differs between the plain program and surestep.

    Floating-point numbers may differ by the rounding of another order of the same sum, in the dtype
    of the plain program; with `exact`, by nothing. Everything else is equal. NaN equals NaN.
    """
    if isinstance(plain, Mapping):
        assert isinstance(ours, Mapping), f"{where}: {type(ours).__name__} for a dict"
        assert plain.keys() == ours.keys(), f"{where}: {sorted(ours)} for {sorted(plain)}"
        for name in plain:
            assert_same(plain[name], ours[name], exact=exact, where=f"{where}[{name!r}]")
        return
    if isinstance(plain, (tuple, list)):
        assert len(plain) == len(ours), f"{where}: {len(ours)} values for {len(plain)}"
        for i, (a, b) in enumerate(zip(plain, ours, strict=True)):
            assert_same(a, b, exact=exact, where=f"{where}[{i}]")
        return
    if isinstance(plain, (bool, str, type(None))):
        assert plain == ours, f"{where}: {ours!r} for {plain!r}"
        return
    a, b = _as_tensor(plain), _as_tensor(ours)
    assert a.shape == b.shape, f"{where}: shape {tuple(b.shape)} for {tuple(a.shape)}"
    if not a.numel():
        return
    if exact or not (a.is_floating_point() or a.is_complex()):
        same = (a == b.to(a.dtype)) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
        assert bool(same.all()), f"{where}: {ours} for {plain}"
        return
    assert torch.equal(a.isnan(), b.isnan()), f"{where}: {ours} for {plain}"
    a, b = a.nan_to_num(), b.to(a.dtype).nan_to_num()
    largest = max(float(a.abs().max()), float(b.abs().max()))
    off = float((a - b).abs().max())
    allowed = TOLERANCE.get(a.dtype, 0.0) * largest
    assert off <= allowed, f"{where}: {ours} for {plain}, which is {off:.3g} off"


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    return torch.as_tensor(np.asarray(value))


def seed_of(*place: str | int) -> int:
    """Return a seed as docs/step.md describes it."""
    words = " ".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1


def seed_all(*place: str | int) -> None:
    """Seed the global generators of torch, numpy and Python as docs/step.md describes it."""
    seed = seed_of(*place)
    torch.manual_seed(seed)
    np.random.seed(seed_of("numpy", seed) % 2**32)
    random.seed(seed_of("python", seed))


def plain_config(**options: Any) -> surestep.Config:
    """Return a Config whose defaults are those of a loop by hand: SGD, nothing else, no shuffle."""
    optim = {"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0}
    defaults: dict[str, Any] = {
        "max_grad_norm": None,
        "schedule": "constant",
        "logging": {"progress": "quiet"} | options.pop("logging", {}),
        "data": {"shuffle": False} | options.pop("data", {}),
        "optim": optim | options.pop("optim", {}),
    }
    return surestep.Config(**defaults | options)


def in_batches(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batches of an epoch in stored order; the last one may be smaller."""
    for first in range(0, len(tensors[0]), size):
        yield tuple(tensor[first : first + size] for tensor in tensors)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters and buffers of a model."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def prepare(task: surestep.Task, config: surestep.Config, **more: Any) -> Session:
    """Open a run that is closed when the test ends."""
    session = surestep.prepare(task, config, **more)
    OPENED.append(session)
    return session


def train(task: surestep.Task, config: surestep.Config, **more: Any) -> Session:
    """Open a run and take all its steps."""
    session = prepare(task, config, **more)
    for _ in session.steps():
        pass
    return session
