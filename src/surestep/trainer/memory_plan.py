"""What `surestep plan` shows of memory: by module, and what fits into a device, here or not."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

from torch import nn

from surestep.config.config import Config
from surestep.engine import private
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.system import SystemInfo
from surestep.engine.profile.rank_memory import RankMemory
from surestep.engine.profile.step_memory import StepMemory
from surestep.engine.resolve.data import why_not_split
from surestep.engine.task.task import Task
from surestep.trainer.memory import (
    NotKnownError,
    estimate_memory_per_rank,
    estimate_step,
    find_largest,
    freeze_for_good,
    trace,
    why_one_size,
)
from surestep.trainer.memory_advice import Advice, advise_for_room
from surestep.trainer.planning import PreparedTask, TaskOrigin, plan_task
from surestep.trainer.step_tracer import StepTracer

ITSELF = "(itself)"


class ModuleMemory(NamedTuple):
    """A part of the model: numbers of its parameters, and bytes of its activations."""

    name: str
    kind: str
    parameters: int
    trained: int
    activations: int


class Fit(NamedTuple):
    """The largest micro-batch that fits under a strategy, 0 if none, and its peak in bytes.

    Of none, the peak is that of one sample.
    """

    strategy: str
    micro_batch_size: int
    peak: int


@dataclass(frozen=True)
class MemoryReport:
    """What `surestep plan` shows of memory.

    Attributes:
        traced: the step of one process.
        modules: with the activations of a micro-batch.
        without: what it would keep without activation checkpointing; None if there is none.
        ranks: of each strategy, with --ranks.
        fits: the largest micro-batch by strategy, with --memory, or why there is one size only.
        advice: what would help, if not even one sample fits under any strategy; else None.
        changed_by_splitting: why a smaller micro-batch changes the update; "" if it does not.
    """

    traced: StepMemory
    modules: list[ModuleMemory]
    without: int | None
    ranks: list[RankMemory]
    fits: list[Fit] | str
    advice: Advice | None
    changed_by_splitting: str

    @property
    def fits_nothing(self) -> bool:
        """Whether not even one sample fits, under any strategy."""
        return self.advice is not None

    def as_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        traced, fits = self.traced, self.fits
        footprint = {**asdict(traced), "peak": traced.peak, "kept": traced.kept}
        footprint["kept_without_checkpointing"] = self.without
        footprint["modules"] = [row._asdict() for row in self.modules]
        return {
            "footprint": footprint,
            "ranks": [{**asdict(rank), "total": rank.total} for rank in self.ranks],
            "fits": fits if isinstance(fits, str) else [fit._asdict() for fit in fits],
            "advice": None if self.advice is None else asdict(self.advice),
            "changed_by_splitting": self.changed_by_splitting,
        }


def report_memory(
    planned: PreparedTask, launched: LaunchInfo | None, limit: int | None
) -> MemoryReport:
    """Trace a step; `launched` are the processes of --ranks, and `limit` the bytes of --memory."""
    traced, without = estimate_step(planned), None
    if planned.plan.activation_checkpointing != "off" and not traced.not_known:
        stored = planned.plan.replace(activation_checkpointing="off")
        without = estimate_step(replace(planned, plan=stored)).kept
    fits: list[Fit] | str = []
    advice = None
    if limit is not None and not traced.not_known:
        fits = find_fitting(planned, limit)
        if not isinstance(fits, str) and not any(fit.micro_batch_size for fit in fits):
            advice = advise_for_room(planned, limit)
    ranks = [] if launched is None else estimate_memory_per_rank(planned, traced)
    modules, changed = list_modules(planned, traced), why_not_split(planned.info)
    return MemoryReport(traced, modules, without, ranks, fits, advice, changed)


def imagine_device(system: SystemInfo, config: Config, memory: int) -> SystemInfo:
    """Return the machine with the CUDA device of the config, if it has none."""
    kind, _, index = str(config.device or "").partition(":")
    if kind != "cuda" or system.cuda_devices:
        return system
    count = 1 + (int(index) if index.isdecimal() else 0)
    return replace(
        system,
        cuda_devices=("a GPU that is not here",) * count,
        cuda_memory=(memory,) * count,
        bf16_native=True,
        tf32=True,
    )


def plan_without_weights(
    task: Task, config: Config, *, origin: TaskOrigin, system: SystemInfo
) -> PreparedTask:
    """Plan a task and build its model of fake tensors, or of real ones if it reads values."""
    if private.FakeTensorMode is not None and not isinstance(task.model, nn.Module):
        fake = private.FakeTensorMode(allow_non_fake_inputs=True)
        try:
            return plan_task(task, config, origin=origin, system=system, build_in=fake)
        except Exception:
            pass  # the same error follows, unless fake tensors are its cause
    return plan_task(task, config, origin=origin, system=system)


def list_modules(planned: PreparedTask, memory: StepMemory) -> list[ModuleMemory]:
    """Return a row for each child of the model, one for the model itself, and one for the loss."""
    model = planned.model
    children = {name: list(child.parameters()) for name, child in model.named_children()}
    kinds = {name: type(child).__name__ for name, child in model.named_children()}
    own = list(model.parameters(recurse=False))
    activations = _by_child(memory.by_module, children)
    if own or not children or activations.get(ITSELF):
        children[ITSELF], kinds[ITSELF] = own, type(model).__name__
    for name in activations.keys() - children.keys():
        children[name], kinds[name] = [], ""
    with freeze_for_good(planned):
        return [
            ModuleMemory(
                name,
                kinds[name],
                sum(p.numel() for p in parameters),
                sum(p.numel() for p in parameters if p.requires_grad),
                activations.get(name, 0),
            )
            for name, parameters in children.items()
        ]


def _by_child(by_module: Mapping[str, int], children: Mapping[str, object]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size in by_module.items():
        child = name.partition(".")[0] or ITSELF
        found[child] = found.get(child, 0) + size
    return found


def find_fitting(planned: PreparedTask, limit: int) -> list[Fit] | str:
    """Find the largest micro-batch that fits, for every strategy; or return why there is none."""
    if reason := why_one_size(planned):
        return reason
    ranks = planned.plan.parallel_ranks

    def run(tracer: StepTracer) -> list[Fit]:
        @cache
        def peaks(size: int) -> dict[str, int]:
            traced = tracer.trace_usual_step(size)
            if ranks == 1:
                return {planned.plan.parallel_strategy: traced.peak}
            return {r.strategy: r.total for r in estimate_memory_per_rank(planned, traced)}

        def peak_of(name: str, size: int) -> int:
            return peaks(size)[name]

        fits = []
        for name in peaks(planned.plan.micro_batch_size):
            size = find_largest(partial(peak_of, name), tracer.samples, limit)
            fits.append(Fit(name, size, peaks(max(size, 1))[name]))
        return fits

    try:
        return trace(planned, run)
    except NotKnownError as error:
        return str(error)
