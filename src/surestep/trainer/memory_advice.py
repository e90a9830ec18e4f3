"""What would make a run need less memory, in the order to try, each with its predicted peak."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError
from surestep.base.text import format_bytes
from surestep.config.config import Config
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.model.activation_checkpointing import select_modules, uses_own_checkpointing
from surestep.engine.model.compile import disable_compile
from surestep.engine.plan.batching import find_largest_share
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.cuda_memory import EXPANDABLE
from surestep.engine.profile.memory_use import MemoryUse
from surestep.engine.profile.step_memory import StepMemory
from surestep.engine.resolve.data import why_not_split
from surestep.trainer.memory import (
    estimate_evaluation,
    estimate_memory_per_rank,
    estimate_step,
)
from surestep.trainer.planning import PreparedTask

_MOST_RANKS = 64  # that are advised
_ON_MACHINE = 8  # ranks, as the default of --local-ranks
_LIMIT_S = 30.0  # after which no more peaks are predicted
_COPIES = ("single", "ddp")  # strategies whose ranks have the full model
_SAVES = 0.98  # of the peak, at most: what saves less is not listed
_MORE_PRECISE = ("fp32", "tf32")
_FRAGMENTED = "as a variable of the environment lets fragmented memory be used"


@dataclass(frozen=True)
class Remedy:
    """Something to set, and what it does.

    Attributes:
        setting: what to type, such as "micro_batch_size=4".
        effect: what it changes in the run; "" for nothing.
        peak: predicted bytes of a step or of a batch of an evaluation; None is not known.
        why_not: why the peak is not known.
        is_enough: whether there is memory for the peak; None is not known.
    """

    setting: str
    effect: str = ""
    peak: int | None = None
    why_not: str = ""
    is_enough: bool | None = None


@dataclass(frozen=True)
class Advice:
    """What would help, in order.

    Attributes:
        current: the predicted peak as the run is; None is not known.
        why_not: why that is not known.
        remedies: in the order to try.
    """

    current: int | None
    why_not: str
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class _Candidate:
    setting: str
    effect: str
    planned: PreparedTask
    size: int | None = None  # of the batches of an evaluation
    smaller: "Callable[[], _Candidate | None]" = lambda: None


def advise(
    planned: PreparedTask,
    use: MemoryUse,
    evaluation_size: int | None = None,
    *,
    is_fixed: bool = False,
) -> Advice:
    """Return what would help, with predictions that need no memory of the device.

    Args:
        planned: the task that ran out of memory, with its model.
        use: what is in memory.
        evaluation_size: of the batches, if an evaluation ran out of memory.
        is_fixed: a part of a step ran out whose memory does not depend on activations.
    """
    if use.device.type != planned.plan.device.type:
        return Advice(None, "the host ran out of memory, not the device", _of_workers(planned.plan))
    candidates = _list_candidates(planned, evaluation_size, is_fixed=is_fixed)
    advice = _predict(planned, candidates, use.room, evaluation_size)
    if use.cuda is not None and use.cuda.is_fragmented and not use.cuda.is_expandable:
        expandable = Remedy(f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}", _FRAGMENTED)
        advice = replace(advice, remedies=(expandable, *advice.remedies))
    return advice


def advise_for_room(planned: PreparedTask, room: int) -> Advice:
    """Return what would help a step whose single samples do not fit, with more ranks to plan for.

    Args:
        planned: the task, of which nothing is on a device.
        room: bytes that a step may take.
    """
    for single in _change(planned, {"micro_batch_size": 1}, ""):
        planned = single.planned
    candidates = _list_candidates(planned, None, is_fixed=False)
    more = _as_list(_add_ranks(planned, 2 * planned.plan.parallel_ranks))
    return _predict(planned, [*candidates, *more], room, None)


def describe_advice(advice: Advice) -> Iterator[str]:
    """Yield a line for each remedy; a reason that all share is in the first line only."""
    if not advice.remedies:
        if advice.current is not None:
            yield (
                f"No option lowers the predicted peak of {format_bytes(advice.current)}: use a "
                "smaller model, or more memory."
            )
        return
    reasons = {remedy.why_not for remedy in advice.remedies}
    shared = reasons.pop() if len(reasons) == 1 else ""
    peak = f"with the predicted peak (now {format_bytes(advice.current)})"
    if advice.current is None:
        peak = f"with peaks that are not known ({shared})" if shared else "with the predicted peak"
    yield f"What would help, in this order, {peak}:"
    for number, remedy in enumerate(advice.remedies, 1):
        yield f"  {number}. {_describe_remedy(remedy, shared)}"


def _describe_remedy(remedy: Remedy, shared: str) -> str:
    text = f"{remedy.setting}{f', which {remedy.effect}' if remedy.effect else ''}"
    if remedy.peak is not None:
        shortage = ", which is not enough" if remedy.is_enough is False else ""
        return f"{text}: {format_bytes(remedy.peak)}{shortage}"
    return f"{text}; its peak is not known: {remedy.why_not}" if remedy.why_not != shared else text


def _predict(
    planned: PreparedTask,
    candidates: Iterable[_Candidate],
    room: int | None,
    evaluation_size: int | None,
) -> Advice:
    """Return the candidates that save memory, with their peaks."""
    predictor = _Predictor(_why_unpredictable(planned))
    with warnings.catch_warnings(), disable_compile(planned.model):
        warnings.simplefilter("ignore")  # of options that are only tried
        current, why_not = predictor.predict(planned, evaluation_size)
        tried = (_try(candidate, room, predictor) for candidate in candidates)
        remedies = [
            remedy
            for remedy in tried
            if current is None or remedy.peak is None or remedy.peak <= _SAVES * current
        ]
    return Advice(current, why_not, tuple(remedies))


def _of_workers(plan: Plan) -> tuple[Remedy, ...]:
    """Return what the processes that load data can need less of."""
    workers = plan.data_num_workers
    if not workers:
        return ()
    effect = "starts fewer processes, each with its own copies and batches"
    return (Remedy(f"data.num_workers={workers // 2}", effect),)


def _try(candidate: _Candidate, room: int | None, predictor: "_Predictor") -> Remedy:
    """Return a candidate with its peak; of sizes, the largest that fits."""
    peak, why_not = predictor.predict(candidate.planned, candidate.size)
    if peak is not None and room is not None and peak > room:
        smaller = candidate.smaller()
        if smaller is not None and (found := _try(smaller, room, predictor)).peak is not None:
            return found
    is_enough = None if peak is None or room is None else peak <= room
    return Remedy(candidate.setting, candidate.effect, peak, why_not, is_enough)


def _why_unpredictable(planned: PreparedTask) -> str:
    """Return why no step can be traced: other ranks would have to take it too; "" if it can."""
    plan = planned.plan
    if planned.system.launched.is_simulated:
        return ""
    is_synced = any(isinstance(module, nn.SyncBatchNorm) for module in planned.model.modules())
    if plan.parallel_ranks > 1 and (is_synced or plan.parallel_strategy not in _COPIES):
        return "all ranks would have to take a step together"
    return ""


class _Predictor:
    """Predicts peaks until it has taken too long.

    Args:
        why_not: why nothing can be predicted; "" if it can.
    """

    def __init__(self, why_not: str) -> None:
        self._why_not, self._end = why_not, time.monotonic() + _LIMIT_S

    def predict(self, planned: PreparedTask, size: int | None) -> tuple[int | None, str]:
        """Return the peak of a step, or of an evaluation; or None and why it is not known."""
        if self._why_not or time.monotonic() > self._end:
            return None, self._why_not or "the other predictions took too long"
        try:
            step = estimate_step(planned) if size is None else estimate_evaluation(planned, size)
        except Exception as error:  # of the user's model, or memory ran out again
            return None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if step.not_known:
            return None, step.not_known
        return _find_peak(planned, step), ""


def _find_peak(planned: PreparedTask, step: StepMemory) -> int:
    """Return the peak of a rank: of the step that was traced in one process, or of its shards."""
    plan = planned.plan
    if plan.parallel_strategy != "fsdp" or plan.parallel_ranks == 1:
        return step.peak
    by_name = {rank.strategy: rank for rank in estimate_memory_per_rank(planned, step)}
    return by_name[f"fsdp {plan.parallel_shard}"].total


def _list_candidates(
    planned: PreparedTask, evaluation_size: int | None, *, is_fixed: bool
) -> Iterator[_Candidate]:
    """Yield what applies to this run."""
    plan, system = planned.plan, planned.system
    on_gpu = plan.device.type == "cuda"
    if evaluation_size is not None:
        yield from _as_list(_smaller_evaluation(planned, evaluation_size))
    elif not is_fixed:
        share = find_largest_share(plan.batch_size, plan.parallel_ranks)
        yield from _as_list(_smaller_step(planned, min(plan.micro_batch_size, share)))
        if plan.activation_checkpointing == "off" and has_blocks(planned.model):
            effect = "recomputes activations, and changes no update"
            yield from _change(planned, {"activation_checkpointing": "on"}, effect)
    if on_gpu and system.bf16_native and plan.precision in _MORE_PRECISE:
        yield from _change(planned, {"precision": "bf16"}, "rounds activations", evaluation_size)
    if evaluation_size is None and on_gpu:
        if plan.optim_name == "adamw":
            yield from _change(planned, {"optim.name": "adamw8bit"}, "rounds the optimizer's state")
        yield from _shard(planned)
        if plan.parallel_strategy == "fsdp" and plan.parallel_offload == "off":
            effect = "keeps weights, gradients and optimizer state on the host; slower"
            yield from _change(planned, {"parallel.offload": "all"}, effect)


def has_blocks(model: nn.Module) -> bool:
    """Return whether activation_checkpointing="on" finds blocks in a model."""
    try:
        return uses_own_checkpointing(model) or bool(select_modules(model, "on"))
    except ConfigError:
        return False


def _as_list(candidate: _Candidate | None) -> list[_Candidate]:
    return [] if candidate is None else [candidate]


def _smaller_step(planned: PreparedTask, size: int) -> _Candidate | None:
    """Return half of a micro-batch; None for 1."""
    half, why_not = size // 2, why_not_split(planned.info)
    effect = "changes no update" + ("" if planned.fits else " ('fit' finds a size)")
    if why_not:
        effect = f"changes the update: {why_not}"
    for candidate in _change(planned, {"micro_batch_size": half}, effect) if half else ():
        return replace(candidate, smaller=partial(_smaller_step, planned, half))
    return None


def _smaller_evaluation(planned: PreparedTask, size: int) -> _Candidate | None:
    half, name = size // 2, "validation.batch_size"
    for candidate in _change(planned, {name: half}, "changes no metric", half) if half else ():
        return replace(candidate, smaller=partial(_smaller_evaluation, planned, half))
    return None


def _shard(planned: PreparedTask) -> Iterator[_Candidate]:
    """Yield what shards over the ranks, or over all GPUs of this machine."""
    plan, system = planned.plan, planned.system
    ranks, gpus = plan.parallel_ranks, len(system.cuda_devices)
    if plan.parallel_strategy == "fsdp" or max(ranks, gpus) == 1:
        return
    over = f" over {ranks} ranks"
    if ranks == 1:
        launched = LaunchInfo(size=gpus, local_size=gpus, launcher="--nproc", is_simulated=True)
        planned = replace(planned, system=replace(system, launched=launched))
        over = f" over {gpus} GPUs (--nproc {gpus})"
    for shard, what in (("grad_op", "gradients and optimizer state"), ("full", "weights too")):
        options = {"parallel.strategy": "fsdp", "parallel.shard": shard}
        for candidate in _change(planned, options, f"shards {what}"):
            yield replace(candidate, setting=candidate.setting + over)


def _add_ranks(planned: PreparedTask, ranks: int) -> _Candidate | None:
    """Return the weights sharded over more ranks; None if they cannot be, or are too many."""
    local = min(ranks, _ON_MACHINE)
    launched = LaunchInfo(size=ranks, local_size=local, launcher="--ranks", is_simulated=True)
    over = replace(planned, system=replace(planned.system, launched=launched))
    options = {"parallel.strategy": "fsdp", "parallel.shard": "full"}
    effect = "shards weights, gradients and optimizer state"
    for candidate in _change(over, options, effect) if ranks <= _MOST_RANKS else ():
        setting = f"{candidate.setting} over {ranks} ranks (--ranks {ranks})"
        return replace(candidate, setting=setting, smaller=partial(_add_ranks, planned, 2 * ranks))
    return None


def _change(
    planned: PreparedTask, options: dict[str, Any], effect: str, size: int | None = None
) -> Iterator[_Candidate]:
    """Yield a run with other options; nothing if they are not allowed."""
    config = Config.from_options({**planned.config.set_options(), **options})
    try:
        plan = planned.decide(config, system=planned.system)
    except ConfigError:
        return
    setting = ", ".join(f"{name}={value!r}" for name, value in options.items())
    yield _Candidate(setting, effect, replace(planned, config=config, plan=plan), size)
