"""Train and eval modes of modules, which are set as `train()` and `eval()` of a model set them.

A module may define its own `train()`: it keeps a part in eval mode, sets a temperature, or merges
the weights of an adapter. Then the attribute `training` is not all that a mode is.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.engine.distributed.shards import to_local

Modes = list[tuple[nn.Module, bool]]


def has_own_modes(module: nn.Module) -> bool:
    """Return whether the module itself defines what `train()` or `eval()` does."""
    kind, own = type(module), vars(module)
    return (
        kind.train is not nn.Module.train
        or kind.eval is not nn.Module.eval
        or "train" in own
        or "eval" in own
    )


def mode_dependent(model: nn.Module) -> list[nn.Parameter]:
    """List the parameters that a custom `train()` or `eval()` of a module may change."""
    modules = [module for module in model.modules() if has_own_modes(module)]
    return list({id(p): p for module in modules for p in module.parameters()}.values())


def set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Set the mode of each module, a module before its parts.

    A module whose mode changes gets a call of its own `train()` or `eval()`, which also sets the
    modes of its parts; those that should have a different one follow in `modes`.
    """
    for module, training in modes:
        if module.training is not training:
            module.train() if training else module.eval()
            module.training = training  # its own train() may choose otherwise


class TrainModes:
    """The train or eval mode that each module should have in training."""

    def __init__(self, model: nn.Module, keep_eval: tuple[nn.Module, ...] = ()) -> None:
        # By the model itself, since a module's train() may keep a part in eval mode.
        model.train()
        modules = set(model.modules())
        for module in keep_eval:
            if module not in modules:
                raise TaskError(
                    f"keep_eval has a {type(module).__name__} that is not a part of the model. "
                    "Name a module of the model itself."
                )
            module.eval()
        self.wanted: Modes = [(module, module.training) for module in model.modules()]
        self.has_own = any(map(has_own_modes, model.modules()))

    def apply(self) -> None:
        """Set the modes of training."""
        set_modes(self.wanted)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Set the modes of training, and restore the current ones."""
        with preserve_modes(module for module, _ in self.wanted):
            self.apply()
            yield

    def for_weights(self) -> AbstractContextManager[None]:
        """Use the modes of training while weights are replaced.

        A custom `train()` may store other weights in eval mode, such as merged ones.
        """
        return self.use() if self.has_own else nullcontext()


@contextmanager
def preserve_modes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore the mode of each module, train or eval; `modules` has a module before its parts."""
    modes = [(module, module.training) for module in modules]
    try:
        yield
    finally:
        set_modes(modes)


@contextmanager
def use_train_modes(model: nn.Module, keep_eval: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Have a model in train mode while its weights are replaced, as `TrainModes.for_weights` does.

    Nothing is called if no module that defines what a mode does is in eval mode.
    """
    kept = set(keep_eval)
    own = [module for module in model.modules() if has_own_modes(module)]
    with preserve_modes(model.modules()):
        if not all(module.training is (module not in kept) for module in own):
            model.train()
        set_modes((module, False) for module in model.modules() if module in kept)
        yield


@contextmanager
def preserve_weights(model: nn.Module) -> Iterator[None]:
    """Restore the parameters that a custom `train()` or `eval()` may change, from host copies.

    An adapter that is merged and subtracted again leaves rounding errors.
    """
    kept = [
        (parameter, to_local(parameter.detach()).to("cpu", copy=True))
        for parameter in mode_dependent(model)
        if not (parameter.is_meta or nn.parameter.is_lazy(parameter))
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, values in kept:
                to_local(parameter.detach()).copy_(values)


def needs_gradient_hint(error: BaseException) -> str:
    """Return what to do about an error of a gradient that is computed under no_grad, or ""."""
    if "does not require grad and does not have a grad_fn" not in str(error):
        return ""
    return (
        "Evaluations and the check of the first batch run without gradients. Compute the "
        "gradient under `with torch.enable_grad():`, from inputs after .requires_grad_()."
    )
