"""Run code with other tensors than those that its modules hold, and restore them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.batch import flatten_tensors, map_tensors

_TENSORS = ("_parameters", "_buffers")
_NO_TENSORS = (*_TENSORS, "_modules")
Convert = Callable[[Tensor], Tensor]


def fake_tensors(mode: Any, device: torch.device) -> Convert:
    """Return what makes a fake tensor on a device of any tensor, also of one on the meta device."""

    def convert(tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided:
            return mode.from_tensor(tensor)  # type: ignore[no-any-return]
        size, stride = tuple(tensor.shape), tensor.stride()
        with mode:
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=device)

    return convert


def copied_tensors(device: torch.device) -> Convert:
    """Return what copies a tensor to a device."""
    return lambda tensor: tensor.detach().to(device, copy=True)


class StandIns:
    """Other tensors for those that modules hold: parameters, buffers, and attributes with tensors.

    A tensor that two modules share stays shared.
    """

    def __init__(self, modules: Iterable[nn.Module], convert: Convert) -> None:
        made: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # with the old one, so that its id stays its own

        def change(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                new = convert(tensor.detach())
                if isinstance(tensor, nn.Parameter):
                    new = nn.Parameter(new, tensor.requires_grad)
                made[id(tensor)] = tensor, new
            return made[id(tensor)][1]

        self._owners: list[tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]] = []
        for own in map(vars, dict.fromkeys(modules)):
            tensors = {
                kind: {
                    key: value if value is None else change(value)
                    for key, value in own[kind].items()
                }
                for kind in _TENSORS
            }
            others = {
                name: map_tensors(value, change)
                for name, value in own.items()
                if name not in _NO_TENSORS and flatten_tensors(value)
            }
            self._owners.append((own, others, tensors))

    @contextmanager
    def use(self) -> Iterator[None]:
        """Replace the tensors, and restore all attributes of the modules."""
        before = [({**own}, {kind: {**own[kind]} for kind in _TENSORS}) for own, *_ in self._owners]
        try:
            for own, others, tensors in self._owners:
                own.update(others)
                for kind in _TENSORS:
                    own[kind].update(tensors[kind])
            yield
        finally:
            for (own, *_), (values, tensors) in zip(self._owners, before, strict=True):
                own.clear()
                own.update(values)
                for kind in _TENSORS:
                    own[kind].clear()
                    own[kind].update(tensors[kind])
