"""What the engine reads of torch under private names, each with what is used if torch lacks it.

They are read once, when this module is imported. Import the module, not its names.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from surestep.base.errors import ParallelError
from surestep.base.find_name import find_name


def _loop_over(name: str) -> Callable[..., None]:
    """Return a method of tensors for many of them, as torch._foreach_* do in one call."""

    def call(tensors: Any, *columns: Any, **options: Any) -> None:
        lists = [
            column if isinstance(column, (list, tuple)) else [column] * len(tensors)
            for column in columns
        ]
        for tensor, *values in zip(tensors, *lists, strict=True):
            getattr(tensor, name)(*values, **options)

    return call


def _list_norms(tensors: Any, order: float = 2, dtype: torch.dtype | None = None) -> list[Any]:
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]


def _reject_open_group() -> Any:
    raise ParallelError(
        f"torch {torch.__version__} does not show the store of a process group that is already "
        "open. Remove init_process_group(): surestep opens the group."
    )


foreach_add_ = find_name("torch:_foreach_add_", instead=_loop_over("add_"))
foreach_mul_ = find_name("torch:_foreach_mul_", instead=_loop_over("mul_"))
foreach_lerp_ = find_name("torch:_foreach_lerp_", instead=_loop_over("lerp_"))
foreach_copy_ = find_name("torch:_foreach_copy_", instead=_loop_over("copy_"))
foreach_clamp_min_ = find_name("torch:_foreach_clamp_min_", instead=_loop_over("clamp_min_"))
foreach_clamp_max_ = find_name("torch:_foreach_clamp_max_", instead=_loop_over("clamp_max_"))
foreach_norm = find_name("torch:_foreach_norm", instead=_list_norms)
# Without it, torch's own step runs.
fused_adamw_ = find_name("torch:_fused_adamw_", instead=None)
# torch.autograd.backward without the check that gradients have the shapes of the losses. That check
# imports torch.fx and sympy at its first call: 0.4 s, and 40,000 objects for the garbage collector.
_engine_run_backward = find_name("torch.autograd.graph:_engine_run_backward", instead=None)
run_backward: Any = _engine_run_backward and partial(
    _engine_run_backward,
    keep_graph=False,
    create_graph=False,
    inputs=(),
    allow_unreachable=True,
    accumulate_grad=True,
)
run_backward = run_backward or torch.autograd.backward
# 0 if an element has a separate address; if it is not known, the tensor is replaced.
has_overlap = find_name("torch:_debug_has_internal_overlap", instead=lambda tensor: 2)
# Without it, an operation of the backward pass has the name of a forward one.
current_autograd_node = find_name("torch._C:_current_autograd_node", instead=lambda: None)
# Without it, the memory of a step is traced with real tensors.
FakeTensorMode = find_name("torch._subclasses:FakeTensorMode", instead=None)
# Operations. Without them, a read in the update ends a trace, and copies of weights in half
# precision count as activations.
read_value = find_name("torch:ops.aten._local_scalar_dense.default", instead=None)
cast_tensor = find_name("torch:ops.aten._to_copy.default", instead=None)
# Without them, the workspace of convolutions is not counted. torch.profiler takes 2 s to start, and
# prints lines.
LegacyProfiler = find_name("torch.autograd.profiler_legacy:profile", instead=None)
enable_profiler = find_name("torch.autograd:_enable_profiler_legacy", instead=None)
disable_profiler = find_name("torch.autograd:_disable_profiler_legacy", instead=None)
# Without it, data workers that die are reported as torch does.
WorkerIterator = find_name(
    "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter", instead=None
)
remove_worker_pids = find_name("torch._C:_remove_worker_pids", instead=lambda loader: None)
# Of a module, with its hooks. Without it, an error of a forward does not name the module.
call_module = find_name("torch.nn:Module._call_impl", instead=None)
# Without them, a module cannot be compiled in place: `compile` is rejected.
can_compile_in_place = call_module is not None and hasattr(torch.nn.Module, "_compiled_call_impl")
# What autograd stores, as it is stored. Without it, a stored tensor is read as the backward does.
saved_tensor_data = find_name("torch._C._autograd:SavedTensor.data", instead=None)
# What PyTorch's memory viewer opens, of all CUDA devices. Without it, there is no such file.
dump_cuda_snapshot = find_name("torch.cuda.memory:_dump_snapshot", instead=None)
_C10D = "torch.distributed.distributed_c10d"
get_default_store = find_name(f"{_C10D}:_get_default_store", instead=_reject_open_group)
# Without it, the timeout of the start stays.
set_group_timeout = find_name(f"{_C10D}:_set_pg_timeout", instead=lambda timeout, group: None)


def count_graphs() -> int:
    """Return how many graphs torch.compile has made; 0 if torch does not report it.

    The import takes half a second.
    """
    counters = find_name("torch._dynamo.utils:counters", instead={"stats": {"unique_graphs": 0}})
    return int(counters["stats"]["unique_graphs"])
