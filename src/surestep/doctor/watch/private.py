"""What is read of torch under private names, each with what is used where torch lacks the name.

They are read once, when this module is imported. Import the module, not its names.
"""

from __future__ import annotations

from contextlib import nullcontext
from pkgutil import resolve_name
from typing import Any


def _find(*names: str, instead: Any) -> Any:
    """Return the first of some objects that torch has, by names such as "torch.fx:Proxy"."""
    for name in names:
        try:
            return resolve_name(name)
        except (ImportError, AttributeError):
            continue
    return instead


def _find_loader_iterator() -> Any:
    """Return the class of which the iterators of DataLoaders have `__next__`."""
    import torch
    from torch.utils.data import DataLoader

    # With its own generator, it draws no number from that of the script.
    iterator = iter(DataLoader([0], generator=torch.Generator()))  # type: ignore[arg-type]
    return next(kind for kind in type(iterator).__mro__ if "__next__" in vars(kind))


_symbolic_trace = _find("torch.fx._symbolic_trace", instead=None)
# Of torch.fx.symbolic_trace; the function is there from torch 2.13 on, and the flag before 2.14.
is_fx_tracing = _find(
    "torch.fx._symbolic_trace:is_fx_symbolic_tracing",
    instead=lambda: getattr(_symbolic_trace, "_is_fx_tracing_flag", False),
)
# Of torch.jit.trace; None or False if it does not run.
get_tracing_state = _find("torch._C:_get_tracing_state", "torch.jit:is_tracing", instead=bool)
# Of torch.func, whose transforms are not seen without it; None if none runs.
peek_transforms = _find("torch._C:_functorch.peek_interpreter_stack", instead=lambda: None)
# Each hides the operations of a rule from the modes of the script, which are of two kinds.
DisableTorchFunction = _find(
    "torch._C:DisableTorchFunction",
    "torch._C:DisableTorchFunctionSubclass",
    instead=nullcontext,
)
disable_dispatch_modes = _find(
    "torch.utils._python_dispatch:_disable_current_modes",
    instead=None,  # no rule is called while a mode is active
)
count_dispatch_modes = _find("torch._C:_len_torch_dispatch_stack", instead=int)
# It knows functions by identity, and looks for them once: in the first call, before they are
# wrapped.
list_device_constructors = _find("torch.utils._device:_device_constructors", instead=list)
LoaderIterator = (
    _find("torch.utils.data.dataloader:_BaseDataLoaderIter", instead=None)
    or _find_loader_iterator()
)
functional_collectives = _find("torch.distributed._functional_collectives", instead=None)
