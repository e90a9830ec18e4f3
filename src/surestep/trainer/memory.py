"""The memory that a task takes: its real step is traced, with tensors that have no memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import nn

from surestep.base.errors import ConfigError
from surestep.engine import private
from surestep.engine.allocator import machine_memory
from surestep.engine.batch import (
    Batch,
    MicroBatch,
    describe_shapes,
    flatten_tensors,
    map_tensors,
    only_element,
    sum_part_items,
    tensor_bytes,
)
from surestep.engine.data.batch_loader import FIRST_BATCHES, BatchLoader, make_loader
from surestep.engine.data.batched import NoData
from surestep.engine.data.dataset import count_samples
from surestep.engine.distributed.communicator import ALONE
from surestep.engine.evaluate.evaluate import eval_mode
from surestep.engine.losses.multi import split_heads
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.activation_checkpointing import activation_checkpointing
from surestep.engine.model.attributes import preserve_attributes
from surestep.engine.model.precision import torch_settings
from surestep.engine.modes import preserve_modes
from surestep.engine.optim.freezing import freeze_permanent
from surestep.engine.optim.param_groups import make_param_groups
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.parallel.guards import HostGuard
from surestep.engine.parallel.wrap_policy import select_wrap_units
from surestep.engine.profile.rank_memory import RankMemory, estimate_rank_memory
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
_CUDA_BLOCK = 512  # bytes; torch's caching allocator rounds to multiples of them
# cuBLAS has 8,519,680 bytes for each thread that multiplies: of the forward, and of the backward.
# Source: https://docs.nvidia.com/cuda/cublas/#cublassetworkspace, CUBLAS_WORKSPACE_CONFIG
_CUBLAS = 2 * (4096 * 2 + 16 * 8) * 1024
_NO_CUDNN = "cuDNN's workspace and the CUDA context are not counted: they depend on the GPU."


_SMALL = 1_000_000  # parameters of a model that is traced with real tensors
_STATE = 5  # times the weights: them, gradients, optimizer state and temporaries

_Traced = TypeVar("_Traced")


def estimate_step(planned: PreparedTask, *, micro_batch_size: int | None = None) -> StepMemory:
    """Estimate the memory of a training step on this rank, once the optimizer has its state.

    Nothing of the task changes. The default size is that of the Plan. For several ranks, it is a
    step of one process, with this rank's share of a batch.
    """
    size = micro_batch_size or planned.plan.micro_batch_size
    return _estimate(planned, size, lambda tracer: tracer.trace_step(size))


def estimate_evaluation(planned: PreparedTask, batch_size: int) -> StepMemory:
    """Estimate the memory of an evaluation between two steps, without what metrics collect."""
    return _estimate(planned, batch_size, lambda tracer: tracer.trace_evaluation(batch_size))


def find_largest_micro_batch(planned: PreparedTask, limit: int) -> int:
    """Find the largest micro-batch whose step takes at most `limit` bytes.

    It is at most this rank's share of a batch; 0 if not even one sample fits.

    Raises:
        ConfigError: the memory of a step is not known, or batches have one size.
    """
    if reason := why_one_size(planned):
        raise ConfigError(f"No size of a micro-batch can be found: {reason}.")

    def run(tracer: StepTracer) -> int:
        return find_largest(lambda n: tracer.trace_usual_step(n).peak, tracer.samples, limit)

    with _explained("micro_batch_size"):
        return trace(planned, run)


def find_largest_eval_batch(planned: PreparedTask, limit: int) -> int:
    """Find the largest batch of an evaluation, as `find_largest_micro_batch` does.

    It is at most the number of samples of the largest validation set.
    """
    sets = planned.task.val_sets().items()
    most = max((count_samples(data, name) or 1 for name, data in sets), default=0)
    if not most:
        raise ConfigError("The task has no validation data, so no batch of it can be found.")

    def run(tracer: StepTracer) -> int:
        return find_largest(lambda n: tracer.trace_evaluation(n).peak, most, limit)

    with _explained("validation.batch_size"):
        return trace(planned, run)


def why_one_size(planned: PreparedTask) -> str:
    """Return why micro-batches have no other size, or ""."""
    if isinstance(planned.task.train, NoData):
        return "the task has no training data, since its step makes its own"
    if planned.task.collate_fn is only_element:
        return "the elements of the training data are batches already"
    return ""


def find_largest(measure: Callable[[int], int], most: int, limit: int) -> int:
    """Return the largest size from 1 to `most` whose measured peak is at most `limit`; 0 if none.

    The peak grows with the size, nearly in proportion: a line through two measured sizes says which
    one to measure next.
    """
    peaks: dict[int, int] = {}
    fits, fails, guess = 0, most + 1, most
    while fails - fits > 1:
        peaks[guess] = measure(guess)
        fits, fails = (guess, fails) if peaks[guess] <= limit else (fits, guess)
        if not fits:
            guess = 1
        elif len(peaks) % 3:
            growth = (peaks[fails] - peaks[fits]) / (fails - fits) if fails in peaks else 0
            guess = fits + int((limit - peaks[fits]) / growth) if growth > 0 else fits + 1
        else:  # it does not grow in proportion
            guess = (fits + fails) // 2
        guess = min(max(guess, fits + 1), fails - 1)
    return fits


class NotKnownError(Exception):
    """The step could not be traced; the text says why."""


@contextmanager
def _explained(option: str) -> Iterator[None]:
    try:
        yield
    except NotKnownError as error:
        raise ConfigError(
            f"The memory of a step is not known: {error}. Set {option} to a number."
        ) from error


def _estimate(
    planned: PreparedTask, size: int, run: Callable[["StepTracer"], StepMemory]
) -> StepMemory:
    """Return what was traced, or what is known without a step."""
    try:
        return trace(planned, run)
    except NotKnownError as error:
        plan, model = planned.plan, planned.model
        with freeze_for_good(planned):
            trained = list(trainable_parameters(model).values())
        return StepMemory(
            size,
            weights=tensor_bytes(model.parameters()),
            buffers=tensor_bytes(model.buffers()),
            gradients=tensor_bytes(trained),
            optimizer=state_bytes(plan.optim_name, plan.optim_options, model, trained),
            average=tensor_bytes(trained) if plan.average.kind != "none" else 0,
            not_known=str(error),
        )


def trace(planned: PreparedTask, run: Callable[["StepTracer"], _Traced]) -> _Traced:
    """Run with a tracer: of fake tensors, and of real ones if the step reads values.

    Raises:
        NotKnownError: neither is possible.
    """
    ways = [False] if _is_small(planned) or private.FakeTensorMode is None else [True]
    if ways == [True] and _is_affordable(planned):
        ways.append(False)
    for is_fake in ways:
        try:
            with ExitStack() as settings:
                return run(StepTracer(planned, settings, is_fake=is_fake))
        except Exception as error:  # of the user's code; or fake tensors have no values
            problem = error
    first_line = str(problem).partition("\n")[0]
    raise NotKnownError(
        f"the first batch fails: {type(problem).__name__}: {first_line}"
    ) from problem


def freeze_for_good(planned: PreparedTask) -> AbstractContextManager[None]:
    """Return a context in which the parameters that are never trained are frozen."""
    groups = () if planned.task.optimizers else make_param_groups(planned.model, planned.plan)
    return freeze_permanent(planned.model, groups)


def _is_affordable(planned: PreparedTask) -> bool:
    """Return whether this machine has memory for a copy of the model that takes a step."""
    return _is_real(planned.model) and (
        _STATE * tensor_bytes(planned.model.parameters()) < machine_memory() / 2
    )


def _is_real(model: nn.Module) -> bool:
    return all(type(p) is nn.Parameter and not p.is_meta for p in model.parameters())


def _is_small(planned: PreparedTask) -> bool:
    """Return whether a step with real tensors takes less time than the import of fake ones."""
    model = planned.model
    return _is_real(model) and sum(p.numel() for p in model.parameters()) <= _SMALL


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
        self.samples = planned.plan.batch_size // planned.plan.parallel_ranks
        self.plan = planned.plan.single_process().replace(
            parallel_strategy="single",
            device=device,
            batch_size=self.samples,
            cpu_allocator="default",
            data_num_workers=0,
            data_persistent_workers=False,
            data_prefetch_factor=None,
            data_pin_memory=False,
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
        passing = [
            sum(trace.find_peak(*phases).kinds[kind] for kind in PASSING if kind != "inputs")
            + (inputs + workspace)
            for phases in (("start", "forward", "backward"), ("update",))
        ]
        kinds["workspace"] += workspace
        kinds["inputs"] = inputs
        kinds["gradients"] += self._leftover
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


def estimate_memory_per_rank(planned: PreparedTask, traced: StepMemory) -> list[RankMemory]:
    """Return the memory of each rank by strategy, for a step that was traced in one process."""
    model, plan = planned.model, planned.plan
    names = plan.parallel_wrap_policy or select_wrap_units(model, "auto").names
    hybrid = plan.parallel_shard_size if plan.parallel_shard == "hybrid" else 0
    with freeze_for_good(planned):
        return estimate_rank_memory(
            model,
            traced,
            blocks=[model.get_submodule(name) for name in names],
            ranks=plan.parallel_ranks,
            local=hybrid or planned.system.launched.local_size,
            precision=plan.precision,
        )
