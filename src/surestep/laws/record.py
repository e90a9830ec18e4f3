"""Records what a run computes step by step, as digests that two processes can compare."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from surestep.base.errors import ConfigError
from surestep.engine.batch import Batch, flatten_tensors
from surestep.engine.distributed.shards import to_local
from surestep.engine.rng import states_of_globals
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.callback import Request
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult
from surestep.record.checkpoint.staging import SnapshotStager
from surestep.trainer.incidents import epoch_index

# What a step computes, in the order of causes: the first that differs explains the others.
KINDS = (
    *("sample indices", "data", "random state", "outputs", "loss", "gradients", "learning rate"),
    *("parameters", "buffers", "optimizer state", "other state"),
)
VALUE = "value"  # the dtype of what is not a tensor, whose digest is its text
_OF_STATE = {"optimizer": "optimizer state", "buffers": "buffers", "optimizers": "optimizer state"}
# Texts of the run folder; and what is read at log points, whose steps may depend on the clock. The
# losses and norms that it follows from are in the record.
_UNRECORDED = ("metadata", "base", "counts", "spikes")


class Place(NamedTuple):
    """Where a value is in a run: the step, one of `KINDS`, and its name."""

    step: int
    kind: str
    name: str


class Digest(NamedTuple):
    """A tensor by its dtype, shape and a hash of its bits; or the text of another value."""

    dtype: str
    shape: tuple[int, ...]
    bits: str


class StepRecord(NamedTuple):
    """What a step computed: its number, and the digests by kind and name.

    The record of the step before the first one has only the state.
    """

    step: int
    values: dict[str, dict[str, Digest]]


@dataclass
class RunRecord:
    """What a run computed, step by step.

    Attributes:
        steps: in order; the first is the state before the first step.
        place: of the tensor that is kept; None if none is.
        kept: this tensor on the host; None if the run did not compute it.
    """

    steps: list[StepRecord] = field(default_factory=list)
    place: Place | None = None
    kept: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it as JSON: torch would share the memory of a process that may be killed."""
        return RunRecord.from_json, (self.to_json(),)

    def to_json(self) -> str:
        """Return the record as JSON; that of another process can be compared with it."""
        kept = None
        if self.kept is not None:
            data = base64.b64encode(_bytes_of(self.kept)).decode()
            kept = [_dtype_name(self.kept), list(self.kept.shape), data]
        return json.dumps({"steps": self.steps, "place": self.place, "kept": kept})

    @classmethod
    def from_json(cls, text: str) -> "RunRecord":
        """Return the record that `to_json` wrote."""
        found = json.loads(text)
        steps = [
            StepRecord(step, {kind: _read_digests(named) for kind, named in values.items()})
            for step, values in found["steps"]
        ]
        place, kept = found["place"], found["kept"]
        return cls(steps, place and Place(*place), kept and _read_tensor(*kept))


def _read_digests(named: Mapping[str, Any]) -> dict[str, Digest]:
    return {name: Digest(dtype, tuple(shape), bits) for name, (dtype, shape, bits) in named.items()}


def _read_tensor(dtype: str, shape: list[int], data: str) -> Tensor:
    flat = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=torch.uint8)
    return flat.view(getattr(torch, dtype)).reshape(shape)


def record_steps(loop: Loop, steps: int, *, keep: Place | None = None) -> RunRecord:
    """Take steps of a loop and return what they computed. It changes no number of the run.

    The tensors of each step are copied to the host and hashed, which waits for the device.

    Args:
        loop: of a run; its parts are called as in any step.
        steps: how many at most; the run may end earlier.
        keep: also keep this tensor.

    Raises:
        ConfigError: `steps` is below 1.
    """
    if steps < 1:
        raise ConfigError(f"steps={steps} are not steps to record. Set 1 or more.")
    with attach_recorder(loop, keep=keep) as recorder, closing(loop.steps()) as taken:
        for _ in islice(taken, steps):
            pass
    return recorder.record


@contextmanager
def attach_recorder(loop: Loop, *, keep: Place | None = None) -> Iterator["StepRecorder"]:
    """Record the steps that a loop takes in the block.

    Args:
        loop: of a run.
        keep: also keep this tensor.
    """
    recorder, parts = StepRecorder(loop, keep=keep), list(loop.parts)
    module = loop.context.strategy.module
    loop.parts.attach([*parts, recorder])
    loop.context.strategy.module = recorder.watch(module)
    try:
        with recorder.note_updates(loop.context.state.optimizers):
            yield recorder
    finally:
        loop.context.strategy.module = module
        loop.parts.attach(parts)


def record_state(state: State, *, keep: Place | None = None) -> RunRecord:
    """Return the record of a state alone: parameters, buffers, optimizers and all else in it."""
    record = RunRecord(place=keep)
    writer = _StepWriter(record, state.progress.step)
    writer.add_state(state)
    return record


class StepRecorder(Part):
    """Records the steps of a loop; the last of its parts, so that it records what others change.

    Args:
        loop: whose steps are recorded.
        keep: also keep this tensor.
    """

    def __init__(self, loop: Loop, *, keep: Place | None = None) -> None:
        self.record = RunRecord(place=keep)
        self._loop = loop
        self._passes = self._backwards = 0
        self._updated: set[str] = set()  # optimizers, by name

    def watch(self, module: nn.Module) -> Any:
        """Return what calls a module, and records the random state before and the outputs after."""
        return _WatchedModule(module, before=self._on_forward, after=self._on_outputs)

    def on_batch(self, state: State, batch: Batch) -> Request | None:
        """Begin a step: record the samples and the data, before Task(batch_transform=)."""
        step = state.progress.step
        if not self.record.steps:
            _StepWriter(self.record, step).add_state(state)
        self._writer = writer = _StepWriter(self.record, step + 1)
        self._passes = self._backwards = 0
        self._updated.clear()
        index = epoch_index(self._loop.loader, batch.epoch)
        rows = range(batch.position, batch.end)
        samples = rows if index is None else index[batch.position : batch.end]
        writer.add("sample indices", "indices", torch.as_tensor(samples))
        for number, micro in enumerate(batch.micro_batches, 1):
            parts = {"input": (micro.args, micro.kwargs), "target": micro.targets}
            for part, value in parts.items():
                writer.add_all("data", f"{part} of micro-batch {number}", value)
        return None

    @contextmanager
    def note_updates(self, optimizers: Mapping[str, Optimizer]) -> Iterator[None]:
        """Note in the block which optimizers update in a step: a manual step may leave one out."""
        hooks = [
            optimizer.register_step_post_hook(lambda *_, name=name: self._updated.add(name))
            for name, optimizer in optimizers.items()
            if len(optimizers) > 1
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _on_forward(self) -> None:
        self._passes += 1
        context, where = self._loop.context, f"before micro-batch {self._passes}"
        for number, generator in enumerate(context.randomness.generators):
            if isinstance(generator, torch.Generator):  # others are seeded with the same seeds
                name = f"torch's generator {number} {where}"
                self._writer.add("random state", name, generator.get_state())
        if context.generators.seeded:  # otherwise nothing draws from them
            states = repr(states_of_globals()).encode()
            text = blake2b(states, digest_size=16).hexdigest()
            self._writer.add("random state", f"numpy's and Python's {where}", text)

    def _on_outputs(self, outputs: Any) -> None:
        self._writer.add_all("outputs", f"output of micro-batch {self._passes}", outputs)

    def on_backward(self, state: State) -> None:
        """Record the gradients before clipping, of each backward pass of the step."""
        self._backwards += 1
        suffix = f" in backward pass {self._backwards}" if self._backwards > 1 else ""
        for name, parameter in trainable_parameters(state.model).items():
            if parameter.grad is not None:
                self._writer.add("gradients", f"{name}{suffix}", parameter.grad)

    def on_step(self, state: State, result: StepResult) -> Request | None:
        """Record the loss, and everything that the step changed."""
        writer = self._writer
        if result.loss_sum is not None:
            writer.add("loss", "sum over the items", result.loss_sum)
        writer.add("loss", "items", result.items)
        for number, logged in enumerate(result.logged, 1):
            writer.add("loss", f"{logged.name}, part {number}", logged.value)
        for called, optimizer in state.optimizers.items():
            if len(state.optimizers) > 1 and called not in self._updated:
                continue  # its rate is that of its last update, or after a resume of the next one
            for number, group in enumerate(optimizer.param_groups):
                name = group.get("name", number)
                writer.add("learning rate", f"{called}, group {name}", group["lr"])
        writer.add_state(state)
        return None


class _WatchedModule:
    """A module with a function before and after its calls; otherwise the module itself."""

    def __init__(
        self, module: nn.Module, *, before: Callable[[], None], after: Callable[[Any], None]
    ) -> None:
        self._module, self._before, self._after = module, before, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._before()
        outputs = self._module(*args, **kwargs)
        self._after(outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _StepWriter:
    """Adds the values of one step to a record."""

    def __init__(self, record: RunRecord, step: int) -> None:
        self._record, self._values = record, StepRecord(step, {})
        record.steps.append(self._values)

    def add(self, kind: str, name: str, value: Any) -> None:
        """Add a tensor, or the text of another value."""
        step, values = self._values
        if isinstance(value, Tensor):
            tensor = _copy_to_host(value)
            digest = digest_tensor(tensor)
            if self._record.place == (step, kind, name):
                self._record.kept = tensor.clone()
        else:
            digest = Digest(VALUE, (), str(value))
        values.setdefault(kind, {})[name] = digest

    def add_all(self, kind: str, name: str, value: Any) -> None:
        """Add the tensors of nested values."""
        for number, tensor in enumerate(flatten_tensors(value), 1):
            self.add(kind, f"{name}, tensor {number}", tensor)

    def add_state(self, state: State) -> None:
        """Add what a checkpoint would hold, this rank's shards of it."""
        snapshot = SnapshotStager().take(state)
        parameters = {name for name, _ in state.model.named_parameters(remove_duplicate=False)}
        for kind, named in snapshot.layout.buffers.items():
            for name, tensor in named.items():
                if kind == "model":
                    self.add("parameters" if name in parameters else "buffers", name, tensor)
                elif kind in _OF_STATE:
                    self.add(_OF_STATE[kind], name, tensor)
                else:
                    self.add("other state", f"{kind}: {name}", tensor)
        record = json.loads(snapshot.record)
        for part, value in record.items():
            if part not in _UNRECORDED:
                for name, leaf in _list_leaves(part, value):
                    self.add(_OF_STATE.get(part, "other state"), name, leaf)


def _list_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts and lists by their paths."""
    if isinstance(value, dict):
        members: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    else:
        yield name, value
        return
    for key, member in members:
        yield from _list_leaves(f"{name}.{key}", member)


def _copy_to_host(tensor: Tensor) -> Tensor:
    local: Tensor = to_local(tensor).detach()
    if local.is_nested:
        local = local.values()
    elif local.layout is not torch.strided:
        local = local.to_dense()
    return local.resolve_conj().resolve_neg().cpu().contiguous()


def _bytes_of(tensor: Tensor) -> Any:
    """Return the memory of a contiguous tensor on the host, not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def digest_value(tensor: Tensor) -> Digest:
    """Return the digest of any tensor, which is copied to the host."""
    return digest_tensor(_copy_to_host(tensor))


def digest_tensor(tensor: Tensor) -> Digest:
    """Return the digest of a contiguous tensor on the host."""
    bits = blake2b(_bytes_of(tensor), digest_size=16).hexdigest()
    return Digest(_dtype_name(tensor), tuple(tensor.shape), bits)
