"""Trace the real step of a task: with tensors that have no memory, or with copies."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch import nn

from surestep.engine import private
from surestep.engine.batch import (
    Batch,
    MicroBatch,
    describe_shapes,
    flatten_tensors,
    map_tensors,
    sum_part_items,
    tensor_bytes,
)
from surestep.engine.data.batch_loader import FIRST_BATCHES, BatchLoader, make_loader
from surestep.engine.data.dataset import count_samples
from surestep.engine.distributed.communicator import ALONE
from surestep.engine.evaluate.evaluate import eval_mode
from surestep.engine.losses.multi import split_heads
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.activation_checkpointing import activation_checkpointing
from surestep.engine.model.attributes import preserve_attributes
from surestep.engine.model.precision import torch_settings
from surestep.engine.modes import preserve_modes
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.parallel.guards import HostGuard
from surestep.engine.plan.batching import find_largest_share
from surestep.engine.profile.stand_ins import StandIns, copied_tensors, fake_tensors
from surestep.engine.profile.step_memory import KINDS, PASSING, StepMemory
from surestep.engine.profile.step_trace import LOSS, StepTrace
from surestep.engine.profile.traced_functions import AttentionRecorder, CudaFunctions
from surestep.engine.rng import preserve_torch_rng
from surestep.engine.state.state import trainable_parameters
from surestep.engine.step.train_step import StepContext, train_step
from surestep.trainer.build import make_step_context
from surestep.trainer.planning import PreparedTask

_CPU = torch.device("cpu")
_INDEX = 8  # bytes of the index of a sample in the order of an epoch, which is on the host
_CUDA_BLOCK = 512  # bytes; torch's caching allocator rounds to multiples of them
# cuBLAS has 8,519,680 bytes for each thread that multiplies: of the forward, and of the backward.
# Source: https://docs.nvidia.com/cuda/cublas/#cublassetworkspace, CUBLAS_WORKSPACE_CONFIG
_CUBLAS = 2 * (4096 * 2 + 16 * 8) * 1024
_NO_CUDNN = "cuDNN's workspace and the CUDA context are not counted: they depend on the GPU."


def state_size(planned: PreparedTask) -> int | None:
    """Return the bytes of the optimizer's state from its options; None of a custom one."""
    plan, model = planned.plan, planned.model
    trained = list(trainable_parameters(model).values())
    return state_bytes(plan.optim_name, plan.optim_options, model, trained)


def _is_here(device: torch.device) -> bool:
    """Return whether there is this device; the step of another one is traced on the CPU."""
    return device.type != "cuda" or torch.cuda.is_available()


def _name_modules(planned: PreparedTask) -> tuple[dict[int, str], list[nn.Module]]:
    """Return the names of the modules of the model, the loss and its teacher by id, and them."""
    names: dict[int, str] = {}
    modules = []
    loss = planned.loss
    for prefix, root in (("", planned.model), (LOSS, loss.module), ("teacher", loss.teacher)):
        for name, module in () if root is None else root.named_modules():
            names.setdefault(id(module), ".".join(filter(None, (prefix, name))))
            modules.append(module)
    return names, modules


def _read_largest(loader: BatchLoader) -> MicroBatch:
    """Return the micro-batch of the most bytes; if code of the user makes them, of several batches.

    The next one is read only if the shapes of one and the one before differ.
    """
    largest = before = loader.first()[1]
    if not (loader.source.collates or loader.is_ready):
        return largest
    batches = islice(loader.batches(0), FIRST_BATCHES)
    for number, micro in enumerate(micro for batch in batches for micro in batch.micro_batches):
        if micro.items and _count_bytes(micro) > _count_bytes(largest):
            largest = micro
        if number and describe_shapes(_content(micro)) == describe_shapes(_content(before)):
            break
        before = micro
    return largest


def _content(micro: MicroBatch) -> Any:
    return micro.args, dict(micro.kwargs), micro.targets


def _count_bytes(micro: MicroBatch) -> int:
    """Return the bytes of the tensors of a micro-batch."""
    return tensor_bytes(flatten_tensors(_content(micro)))


class StepTracer:
    """Traces steps of a task, of several sizes one after another.

    It is for use while `settings` is open, which restores everything.
    """

    def __init__(self, planned: PreparedTask, settings: ExitStack, *, is_fake: bool) -> None:
        self.planned, self.is_fake = planned, is_fake
        self._kind = planned.plan.device.type
        device = planned.plan.device if _is_here(planned.plan.device) else torch.device("cpu")
        self.samples = find_largest_share(planned.plan.batch_size, planned.plan.parallel_ranks)
        self.plan = planned.plan.single_process().without_workers()
        self.plan = self.plan.replace(
            parallel_strategy="single",
            device=device,
            batch_size=self.samples,
            cpu_allocator="default",
        )
        self._names, modules = _name_modules(planned)
        # Gradients that another training has left; those of trained weights are cleared.
        trained = set(trainable_parameters(planned.model).values())
        left = {p for module in modules for p in module.parameters()} - trained
        self._leftover = tensor_bytes(p.grad for p in left if p.grad is not None)
        enter = settings.enter_context
        enter(torch_settings(self.plan))
        enter(preserve_torch_rng(device))
        enter(preserve_modes(modules))
        if planned.loss.teacher is not None:
            planned.loss.teacher.eval()
        settings.callback(pop_logged)
        enter(activation_checkpointing(planned.model, self.plan.activation_checkpointing))
        self._mode = (
            private.FakeTensorMode(allow_non_fake_inputs=True) if is_fake else nullcontext()
        )
        self._convert = fake_tensors(self._mode, device) if is_fake else copied_tensors(device)
        self._stand_ins = StandIns(modules, self._convert)
        self._attention = AttentionRecorder()
        self._is_elsewhere = self._kind == "cuda" and device.type == "cpu"
        self._functions = CudaFunctions() if self._is_elsewhere else nullcontext()
        block = _CUDA_BLOCK if self._kind == "cuda" else 1
        self._trace = StepTrace(
            device.type,
            block,
            self._names,
            planned.model,
            is_fake=is_fake,
            measures_workspace=self._kind == "cpu",
        )
        self._context: StepContext | None = None
        self._settings, self._modules = settings, modules

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        codes = (self.planned.model, self.planned.loss.module, self.planned.task.batch_transform)
        with (
            preserve_attributes(*codes),
            self._stand_ins.use(),
            self._mode,
            self._attention,
            self._functions,
            self._trace.follow_modules(),
            self._trace,
        ):
            yield

    def trace_step(self, size: int) -> StepMemory:
        """Trace a step with micro-batches of a size, of which the state exists before it."""
        micro_batches = self._read_batch(size)
        if self._context is None:
            with self._tracing():
                self._context = self._make_context()
            self._take_step(micro_batches[:1])
        assert self._context is not None
        strategy, is_usual = self._context.strategy, self._context.custom_update is None
        if is_usual and micro_batches[0] is micro_batches[-1]:
            # One that adds to the gradients of the step before takes the most, and half the time.
            strategy.cleared = strategy.parameters if len(micro_batches) == 1 else []
            return self._take_step(micro_batches[:1])
        strategy.cleared = strategy.parameters
        return self._take_step(micro_batches)

    def trace_usual_step(self, size: int) -> StepMemory:
        """Trace a step; of two samples instead of one if BatchNorm rejects one."""
        try:
            return self.trace_step(size)
        except ValueError:
            if size > 1:
                raise
            return self.trace_step(2)

    def _read_batch(self, size: int) -> list[MicroBatch]:
        """Read the first micro-batch, and one that adds to its gradients if there are several."""
        first = self._read(size, self.planned.task.train, "train", training=True)
        left = self.samples - size
        if left <= 0:
            return [first]
        if left >= size:
            return [first, first]
        return [first, self._read(left, self.planned.task.train, "train", training=True)]

    def trace_evaluation(self, size: int) -> StepMemory:
        """Trace the forward and the loss of a batch of an evaluation, between two steps."""
        if self._context is None:
            self.trace_step(self.planned.plan.micro_batch_size)
        name, data = next(iter(self.planned.task.val_sets().items()))
        micro = self._read(size, data, name, training=False)
        assert self._context is not None
        (moved,) = self._place([micro]).micro_batches
        with self._tracing():
            self._trace.begin()
            with torch.no_grad(), eval_mode(self.planned.model), self._context.autocast:
                outputs = self._context.strategy.module(*moved.args, **moved.kwargs)
                loss = self.planned.loss
                if not loss.is_in_training_only:
                    for head in split_heads(loss, outputs, moved):
                        head.loss.value(head.outputs, head.loss.targets_of(head.micro_batch))
        return self._collect(micro, micro.samples)

    def _read(self, size: int, data: Any, part: str, *, training: bool) -> MicroBatch:
        """Read the largest of the first micro-batches of a size; their shapes may differ."""
        own = {"micro_batch_size": size} if training else {"validation_batch_size": size}
        loader = make_loader(
            data,
            part,
            task=self.planned.task,
            loss=self.planned.loss,
            plan=self.plan.replace(batch_size=max(size, self.samples), device=_CPU, **own),
            training=training,
        )
        try:
            return _read_largest(loader)
        finally:
            loader.close()

    def _make_context(self) -> StepContext:
        model, loss, trace = self.planned.model, self.planned.loss, self._trace
        for module in self._modules:
            trace.add("weights", module._parameters.values())
            trace.add("buffers", module._buffers.values())
        context, _ = make_step_context(
            self.plan, self.planned.task, model, loss, self._settings, ALONE
        )
        for parameter in model.parameters():
            if parameter.requires_grad:
                hooked: Any = parameter  # torch's method has no types
                hooked.register_post_accumulate_grad_hook(
                    lambda parameter: trace.add("gradients", [parameter.grad])
                )
        context.on_backward.append(lambda _: trace.begin_update())
        guard = context.strategy.guard
        if isinstance(guard, HostGuard):
            context.strategy.step = guard.step_without_reading
        if context.state.average is not None:
            trace.add("average", context.state.average.stored.values())
        return context

    def _place(self, micro_batches: Sequence[MicroBatch]) -> Batch:
        """Return a batch on the device."""
        placed = []
        for number, micro in enumerate(micro_batches):
            args, kwargs, targets = map_tensors(_content(micro), self._convert)
            self._trace.add("inputs", flatten_tensors((args, kwargs, targets)))
            position = number * micro.samples
            placed.append(
                micro._replace(args=args, kwargs=kwargs, targets=targets, position=position)
            )
        items, samples = sum(m.items for m in placed), sum(m.samples for m in placed)
        parts = sum_part_items(placed) if self.planned.loss.components else ()
        return Batch(tuple(placed), items, samples, 0, 0, samples, False, parts)

    def _take_step(self, micro_batches: Sequence[MicroBatch]) -> StepMemory:
        assert self._context is not None
        batch = self._place(micro_batches)
        with self._tracing():
            self._trace.begin()
            train_step(self._context, batch)
        state = [*self._context.state.optimizers.values()]
        self._trace.add(
            "optimizer", flatten_tensors([list(optimizer.state.values()) for optimizer in state])
        )
        return self._collect(micro_batches[0], max(self.samples, batch.samples))

    def _collect(self, micro: MicroBatch, samples: int) -> StepMemory:
        """Return the peak, with so many samples on the device, like those of a micro-batch."""
        trace = self._trace
        trace.measure_workspaces()
        kinds: dict[str, Any] = {kind: trace.find_peak().kinds[kind] for kind in KINDS}
        inputs = samples * _count_bytes(micro) // micro.samples
        workspace = 0
        if self._kind == "cuda":
            inputs *= 2  # the next batch is copied while a step runs
            workspace = _CUBLAS
        elif self.plan.data_shuffle:
            inputs += _INDEX * (count_samples(self.planned.task.train, "train") or 0)
        passing = [
            sum(trace.find_peak(*phases).kinds[kind] for kind in PASSING if kind != "inputs")
            + (inputs + workspace)
            for phases in (("start", "forward", "backward"), ("update",))
        ]
        kinds["workspace"] += workspace
        kinds["inputs"] = inputs
        kinds["gradients"] += self._leftover
        if self.plan.guard == "line_search":  # L-BFGS remembers more updates than were traced
            kinds["optimizer"] = state_size(self.planned)
        return StepMemory(
            micro.samples,
            **kinds,
            by_module=dict(trace.find_most_activations().modules),
            in_backward=passing[0],
            in_update=passing[1],
            attention=() if self._is_elsewhere else tuple(dict.fromkeys(self._attention.kernels)),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        """Return what is not in the numbers."""
        notes = []
        if self._kind == "cuda":
            notes.append(_NO_CUDNN)
        if self._is_elsewhere:
            notes.append("There is no CUDA device here: the CPU's operations were traced.")
        if self.plan.compile != "off":
            notes.append("torch.compile is not traced: the step is that without it.")
        return tuple(notes)
