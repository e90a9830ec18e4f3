"""The parts of a run: all that happens beside the step, in the order in which it happens.

At each moment, the parts that have it are called in this order on every rank, since several need
all ranks together; at the end in reverse order. What writes, shows or sends something does it on
the first rank only.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from surestep.engine.model.compile import recompile_counter
from surestep.engine.profile.profiler import Profile
from surestep.engine.step.callback import Callback
from surestep.engine.step.deadline import Deadline
from surestep.engine.step.layer_norms import LayerNormMeter
from surestep.engine.step.part import Functions, Part
from surestep.record.progress_display import NullProgress
from surestep.record.run_writer import RunWriter
from surestep.tracking.graph import WriteGraph
from surestep.tracking.histograms import RecordHistograms
from surestep.trainer.build import BuiltLoop
from surestep.trainer.explain_memory import ExplainMemory
from surestep.trainer.rank_consistency import CheckReplicas
from surestep.trainer.record_steps import RecordSteps
from surestep.trainer.scheduled import EarlyStopping, ScheduledEvaluation, ScheduledSaving
from surestep.trainer.session import Session
from surestep.trainer.spike_rollback import SpikeWatch


class InBackground(Protocol):
    """Sends what the run records, in a separate thread."""

    def notice(self) -> str | None:
        """Return what the user should know, once."""


def list_parts(
    session: Session,
    built: BuiltLoop,
    recorder: RunWriter,
    display: NullProgress,
    callbacks: Sequence[Callback],
    senders: Iterable[InBackground],
    start_time: float,
) -> Sequence[Callback]:
    """Return the parts of a run, in order.

    Args:
        session: ready for its first step.
        built: its loop, with what was found while building it.
        recorder: of the run folder.
        display: of the progress.
        callbacks: of the user, and of the options that packages add.
        senders: trackers and the mirror.
        start_time: of `prepare()`, in seconds of `time.monotonic()`.
    """
    plan, loop = session.plan, session.loop
    world, state, trains = loop.world, loop.state, not session.finished
    parts: list[Callback] = [
        # First what finds that the steps trained something else: nothing may record or save them.
        Functions("unfreezing check", on_log=built.check_requires_grad),  # each rank its own model
        Functions("trained tensors", on_log=built.leaves.repeat),  # each rank its own graph
        built.writes,  # before others read what the forwards changed; the ranks compare it
        Functions("late generators", on_first_step=lambda state: built.seed_late_generators()),
        # What ends or explains a step. All ranks pause together.
        _explain_memory(built, callbacks, recorder),  # the rank that ran out
    ]
    if plan.max_time is not None:
        parts.append(Deadline(start_time + plan.max_time.amount * 60, loop.requests.ask))
    if world.monitor is not None:  # the first step compiles and connects, and takes longer
        use_steady = world.monitor.timeouts.use_steady_timeout
        parts.append(Functions("timeouts", on_first_step=lambda state: use_steady()))
    if world.size > 1 and plan.parallel_replica_check_every is not None:
        parts.append(CheckReplicas(world, plan, plan.parallel_replica_check_every))
    if trains and plan.logging_per_layer:  # before callbacks, which may change weights in on_step
        parts.append(LayerNormMeter(state, loop.context.strategy, loop.log.may_be_due_after))
    parts += [
        # What the steps did is recorded before anything acts on it.
        session.timed,  # each rank its own steps; the first one reports them
        session.checks,  # the first rank; its findings are printed before the line of the steps
        RecordSteps(recorder, loop),  # the first rank
        session.saving,  # what is on the disk now: all ranks learn of it together
        display,  # the first rank, after what it shows is recorded
        session.incidents,  # all ranks, before a step that was not finite is acted on
        # An evaluation comes before the save of its step, which then has the metrics.
        ScheduledEvaluation(session),  # all ranks, each a share
    ]
    if trains and plan.report_samples and session.task.val_sets():
        parts.append(_record_predictions(session, recorder))  # all ranks; the first one writes
    if plan.compile != "off":
        parts.append(_notices("recompilation", recompile_counter()))
    parts += [_notices(type(sender).__name__, sender.notice) for sender in senders]  # first rank
    if trains and plan.on_spike != "off":  # after the records, since it may undo the steps
        parts.append(SpikeWatch(session, recorder))
    # Callbacks of users, on each rank, see what is recorded and hold up nothing before them.
    parts += callbacks
    # Last what saves, ends, measures or copies a step with all that callbacks did in it.
    parts += [ScheduledSaving(session), EarlyStopping(session)]
    if trains and plan.profile is not None:
        parts.append(Profile(plan.profile, session.run.path / "profile", loop))
    if trains and plan.logging_histograms is not None:
        period = plan.logging_histograms.steps(plan.steps_per_epoch)
        record = partial(recorder.event, "histograms")
        parts.append(RecordHistograms(period, record, lambda: session.closed))
    if trains and plan.logging_graph and world.is_first:
        parts.append(WriteGraph(session.run.path / "tensorboard"))
    return parts


def _explain_memory(
    built: BuiltLoop, callbacks: Iterable[Callback], recorder: RunWriter
) -> ExplainMemory:
    loader, rank = built.loop.loader, built.loop.world.rank

    def read_size() -> int:
        return loader.layout.micro_batch_size

    return ExplainMemory(built.planned, callbacks, recorder, rank, read_size=read_size)


def _notices(label: str, notice: Callable[[], str | None]) -> Part:
    """Return a part that shows what a function returns."""
    return Functions(label, on_log=lambda state, point: notice())


def _record_predictions(session: Session, recorder: RunWriter) -> Part:
    from surestep.trainer.record_predictions import RecordPredictions  # few runs have it

    return RecordPredictions(session, recorder)
