"""The memory that a task takes: its real step is traced, with tensors that have no memory."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from torch import nn

from surestep.base.errors import ConfigError
from surestep.engine import private
from surestep.engine.allocator import machine_memory
from surestep.engine.batch import (
    only_element,
    tensor_bytes,
)
from surestep.engine.data.batched import NoData
from surestep.engine.data.dataloader import loader_settings
from surestep.engine.data.dataset import count_samples
from surestep.engine.optim.freezing import freeze_permanent
from surestep.engine.optim.param_groups import make_param_groups
from surestep.engine.parallel.wrap_policy import select_wrap_units
from surestep.engine.profile.rank_memory import RankMemory, estimate_rank_memory
from surestep.engine.profile.step_memory import StepMemory
from surestep.engine.state.state import trainable_parameters
from surestep.trainer.planning import PreparedTask
from surestep.trainer.step_tracer import StepTracer, state_size

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

    It is at most the number of samples of the largest validation set; of a stream without a
    length, the size of a batch in training.
    """
    sets = planned.task.val_sets()
    if not sets:
        raise ConfigError("The task has no validation data, so no batch of it can be found.")
    own = [name for name, data in sets.items() if (loader_settings(data) or {}).get("batch_size")]
    if reason := why_one_size(planned) or ", ".join(f"{name} is a DataLoader" for name in own):
        raise ConfigError(f"No size of a batch to evaluate can be found: {reason}.")
    counts = [count_samples(data, name) for name, data in sets.items()]
    most = max(planned.plan.batch_size if count is None else max(1, count) for count in counts)

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
            optimizer=state_size(planned),
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
