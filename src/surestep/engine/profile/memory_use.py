"""What is in memory, counted when there is none left."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.batch import Batch, MicroBatch, flatten_tensors
from surestep.engine.host_memory import HostMemory, ran_out_on_host, read_host_memory
from surestep.engine.object_search import Root
from surestep.engine.profile.cuda_memory import (
    CudaMemory,
    find_requested,
    list_allocating_lines,
    read_cuda_memory,
)
from surestep.engine.profile.kept_tensors import KeptTensors, find_kept
from surestep.engine.profile.saved_tensors import GraphCounter, StorageCounter
from surestep.engine.state.state import State

_LARGEST = 20  # that are listed


@dataclass
class MemoryUse:
    """What was in memory when it ran out; what could not be found out is in `not_known`.

    Attributes:
        device: whose memory ran out.
        requested: the bytes that could not be allocated; None is not known.
        kinds: bytes by "weights", "buffers", "gradients", "optimizer", "average", "inputs" and
            "activations".
        modules: bytes of the activations by module.
        kept: the tensors of the user's code that stay from step to step, the largest first.
        others: tensors that are none of these, added up by shape and type.
        lines: that allocated the most, if torch recorded stacks.
        host: of this process.
        cuda: of the device; None if the memory of the host ran out.
        not_known: why, by attribute.
    """

    device: torch.device
    requested: int | None
    kinds: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    kept: list[KeptTensors] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    host: HostMemory | None = None
    cuda: CudaMemory | None = None
    not_known: dict[str, str] = field(default_factory=dict)

    @property
    def room(self) -> int | None:
        """The bytes that a step may take beside what is not its own; None is not known."""
        if self.cuda is not None:
            return self.cuda.limit - sum(one.total for one in self.kept)
        kinds = sum(self.kinds.values())
        return None if self.host is None or self.host.room is None else self.host.room + kinds

    def as_json(self) -> dict[str, Any]:
        """Return what the file of the run folder has."""
        host, cuda = self.host, self.cuda
        return {
            "device": str(self.device),
            "requested": self.requested,
            **self.kinds,
            "modules": self.modules,
            "kept": [asdict(one) for one in self.kept[:_LARGEST]],
            "others": self.others,
            "lines": self.lines,
            "host": None if host is None else asdict(host),
            "cuda": None if cuda is None else asdict(cuda),
            "not_known": self.not_known,
        }


def measure_memory_use(
    error: BaseException,
    device: torch.device,
    *,
    model: nn.Module,
    state: State | None,
    roots: Callable[[], Iterable[Root]],
) -> MemoryUse:
    """Count what is in memory after an error; an error of the counting is noted, not raised.

    Args:
        error: says that memory ran out, with its traceback.
        device: that the run uses.
        model: its model.
        state: with its optimizers; None before the first step.
        roots: returns what may hold tensors of the user's code, by name.
    """
    if ran_out_on_host(error):
        device = torch.device("cpu")
    use = MemoryUse(device, find_requested(str(error)))
    counter = StorageCounter(device)
    graphs = GraphCounter(counter, model.named_parameters())

    def count() -> None:
        for kind, tensors in _kinds(model, state).items():
            use.kinds[kind] = counter.add(tensors)
        of_step = list(_step_values(error.__traceback__))
        batches = [value for value in of_step if isinstance(value, (Batch, MicroBatch))]
        use.kinds["inputs"] = counter.add(flatten_tensors(batches))
        use.modules = dict(graphs.add(flatten_tensors(of_step)).most_common())
        use.kinds["activations"] = sum(use.modules.values())

    def find_users() -> None:
        use.kept = find_kept(roots(), counter, graphs)

    def find_others() -> None:
        use.others = _add_up_by_shape(counter)

    def read_host() -> None:
        use.host = read_host_memory()

    def read_cuda() -> None:
        if device.type == "cuda":
            use.cuda = read_cuda_memory(device, str(error))

    def list_lines() -> None:
        if device.type == "cuda":
            use.lines = list_allocating_lines(device)

    parts = {
        "memory of the model and of the step": count,
        "your own tensors": find_users,
        "other tensors": find_others,
        "memory of the host": read_host,
        "memory of the device": read_cuda,
        "lines that allocated": list_lines,
    }
    for name, part in parts.items():
        try:
            part()
        except Exception as failed:  # memory may run out again; the first error is the one to raise
            use.not_known[name] = f"{type(failed).__name__}: {failed}"
    return use


def _kinds(model: nn.Module, state: State | None) -> Mapping[str, list[Tensor]]:
    """Return what a run keeps from step to step, by kind."""
    parameters, optimizers = list(model.parameters()), {} if state is None else state.optimizers
    average = None if state is None else state.average
    return {
        "weights": [parameter.detach() for parameter in parameters],
        "buffers": list(model.buffers()),
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer": [
            tensor
            for optimizer in optimizers.values()
            for tensor in flatten_tensors(list(optimizer.state.values()))
        ],
        "average": [] if average is None else list(average.stored.values()),
    }


def _step_values(trace: TracebackType | None) -> Iterator[Any]:
    """Yield the tensors that the functions of the failed step have, alone or in tuples and dicts.

    Not those in lists: a list may be one that the user keeps.
    """
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            if isinstance(value, (Tensor, tuple, dict)):
                yield value
        trace = trace.tb_next


def _add_up_by_shape(counter: StorageCounter) -> list[dict[str, Any]]:
    """Return the tensors that were not counted, added up by shape and type."""
    counts: Counter[tuple[tuple[int, ...], str]] = Counter()
    sizes: Counter[tuple[tuple[int, ...], str]] = Counter()
    for tensor in gc.get_objects():
        if type(tensor) is Tensor and (size := counter.add([tensor])):
            key = (tuple(tensor.shape), str(tensor.dtype))
            counts[key] += 1
            sizes[key] += size
    return [
        {"shape": list(shape), "dtype": dtype, "tensors": counts[shape, dtype], "bytes": size}
        for (shape, dtype), size in sizes.most_common(_LARGEST)
    ]
