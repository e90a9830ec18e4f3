"""What a step or a look at a model puts back: its modes and its buffers."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.parallel.base import Outcome


class Buffers:
    """The buffers of a model, to be put back where a step is skipped.

    A forward has moved BatchNorm's statistics before anybody knows that its step will not count.
    They are found by owner and name, since some modules put a new tensor in place of the old.
    """

    def __init__(self, model: nn.Module) -> None:
        self.slots = [
            (module._buffers, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._kept: list[Tensor] = []

    def keep(self) -> None:
        """Keep a copy."""
        with torch.no_grad():
            self._kept = [_tensor(owner, name).clone() for owner, name in self.slots]

    @torch.no_grad()
    def restore(self, outcome: Outcome) -> None:
        """Put the copy back where the step was not taken; on the device where only it knows."""
        if outcome.poison is None and outcome.took_step:
            return
        good = None if outcome.poison is None else outcome.poison == 0
        for (owner, name), kept in zip(self.slots, self._kept, strict=True):
            now = _tensor(owner, name)
            if now.shape != kept.shape:  # a table that grew: only what it holds is new
                owner[name] = kept if good is None else now
            elif good is None:
                now.copy_(kept)
            else:
                torch.where(good, now, kept.to(now.dtype), out=now)


def _tensor(owner: Mapping[str, Tensor | None], name: str) -> Tensor:
    buffer = owner[name]
    assert buffer is not None
    return buffer


class Modes:
    """The train or eval mode that each module should have in training."""

    def __init__(self, model: nn.Module, keep_eval: tuple[nn.Module, ...] = ()) -> None:
        # Asked of the model itself, since a module may keep a part in eval mode in its train().
        model.train()
        held = set(model.modules())
        for module in keep_eval:
            if module not in held:
                raise TaskError(
                    f"keep_eval has a {type(module).__name__} that is not a part of the model. "
                    "Name a module of the model itself."
                )
            module.eval()
        self.wanted = [(module, module.training) for module in model.modules()]


@contextmanager
def kept_modes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put each module back into its own mode, train or eval."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put back what a forward moves: its state of another kind than BatchNorm's is the run's."""
    buffers = Buffers(model)
    buffers.keep()
    try:
        yield
    finally:
        buffers.restore(Outcome(False))
