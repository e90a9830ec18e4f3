"""What is read of torch under private names, each with what is used where torch lacks the name.

They are read once, when this module is imported. Import the module, not its names.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from surestep.base.find_name import find_name


def _find_loader_iterator() -> Any:
    """Return the class of which the iterators of DataLoaders have `__next__`."""
    # With its own generator, it draws no number from that of the script.
    iterator = iter(DataLoader([0], generator=torch.Generator()))  # type: ignore[arg-type]
    return next(kind for kind in type(iterator).__mro__ if "__next__" in vars(kind))


_symbolic_trace = find_name("torch.fx._symbolic_trace", instead=None)
# Of torch.fx.symbolic_trace. torch 2.6 lacks the function, and 2.14 the flag.
is_fx_tracing = find_name(
    "torch.fx._symbolic_trace:is_fx_symbolic_tracing",
    instead=lambda: getattr(_symbolic_trace, "_is_fx_tracing_flag", False),
)
# Of torch.jit.trace; None or False if it does not run.
get_tracing_state = find_name("torch._C:_get_tracing_state", "torch.jit:is_tracing", instead=bool)
# Of torch.func, whose transforms are not seen without it; None if none runs.
peek_transforms = find_name("torch._C:_functorch.peek_interpreter_stack", instead=lambda: None)
# Each hides the operations of a rule from the modes of the script, which are of two kinds.
DisableTorchFunction = find_name(
    "torch._C:DisableTorchFunction",
    "torch._C:DisableTorchFunctionSubclass",
    instead=nullcontext,
)
disable_dispatch_modes = find_name(
    "torch.utils._python_dispatch:_disable_current_modes",
    instead=None,  # no rule is called while a mode is active
)
count_dispatch_modes = find_name("torch._C:_len_torch_dispatch_stack", instead=int)
# It knows functions by identity, and looks for them once: in the first call, before they are
# wrapped.
list_device_constructors = find_name("torch.utils._device:_device_constructors", instead=list)
LoaderIterator = (
    find_name("torch.utils.data.dataloader:_BaseDataLoaderIter", instead=None)
    or _find_loader_iterator()
)
# Layers, with those of the user that derive from these private bases.
BatchNorm: Any = find_name(
    "torch.nn.modules.batchnorm:_BatchNorm",
    instead=(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
)
InstanceNorm: Any = find_name(
    "torch.nn.modules.instancenorm:_InstanceNorm",
    instead=(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
Dropout: Any = find_name(
    "torch.nn.modules.dropout:_DropoutNd",
    instead=(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
)
# One call for many tensors.
foreach_sub = find_name(
    "torch:_foreach_sub", instead=lambda many, others: list(map(torch.sub, many, others))
)
foreach_div = find_name(
    "torch:_foreach_div", instead=lambda many, others: list(map(torch.div, many, others))
)
foreach_norm = find_name(
    "torch:_foreach_norm", instead=lambda many: list(map(torch.linalg.vector_norm, many))
)
functional_collectives = find_name("torch.distributed._functional_collectives", instead=None)


def list_scaler_stages(scaler: Any) -> dict[int, str] | None:
    """Return "READY", "UNSCALED" or "STEPPED" by the id of an optimizer; None if not known."""
    states = getattr(scaler, "_per_optimizer_states", None)
    return None if states is None else {key: state["stage"].name for key, state in states.items()}


def has_first_scale(scaler: Any) -> bool:
    """Return whether a GradScaler was made with torch's scale; False if that is not known."""
    return getattr(scaler, "_init_scale", None) == 2.0**16


def count_graphs() -> int:
    """Return how many graphs torch.compile has made; 0 if torch does not report it."""
    counters = find_name("torch._dynamo.utils:counters", instead={"stats": {"unique_graphs": 0}})
    return int(counters["stats"]["unique_graphs"])
