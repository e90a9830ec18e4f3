"""From a Task and a Config to a Session that is ready for its first step."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from surestep.base.arguments import suggest_arguments
from surestep.base.errors import ConfigError, SurestepError
from surestep.base.paths import fix_path, working_directory
from surestep.config.config import Config, argument_instead
from surestep.config.optim import FIND
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.distributed.process_group import join_process_group
from surestep.engine.distributed.rank_status import RankStatus
from surestep.engine.model.precision import torch_settings
from surestep.engine.plan.not_checked import NotChecked
from surestep.engine.plan.plan import Plan
from surestep.engine.step.callback import Callback
from surestep.engine.task.init_weights import InitReport
from surestep.engine.task.task import Task
from surestep.record.checkpoint.staging import check_can_be_saved
from surestep.record.pretrained import load_init_weights
from surestep.record.progress_display import open_progress
from surestep.record.run_writer import RunWriter
from surestep.tracking.tracker import Tracker
from surestep.trainer.arguments import check_arguments, plugin_callbacks
from surestep.trainer.best_metric import measure_on, reset_best
from surestep.trainer.build import BuiltLoop, build
from surestep.trainer.config_diff import may_change_data
from surestep.trainer.decision_regions import open_callbacks
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.explain_memory import explain_memory_errors
from surestep.trainer.fit_memory import fit_memory, plan_first_sizes
from surestep.trainer.memory_failure import Failure
from surestep.trainer.own_loop import describe_ignored
from surestep.trainer.parts import InBackground, list_parts
from surestep.trainer.planning import PreparedTask, TaskOrigin, make_eval_loaders, plan_task
from surestep.trainer.rank_consistency import check_same_setup, check_same_weights
from surestep.trainer.rank_zero import (
    broadcast_resume_decision,
    load_checkpoint,
    open_run_folder,
    run_on_rank_zero,
)
from surestep.trainer.resume import Resume, ResumeDecision, check_resume_arguments, decide_resume
from surestep.trainer.run_folder import RunFolder, check_restarts, open_folder, resolve_address
from surestep.trainer.session import Session
from surestep.trainer.signals import attach_signals, stop_before_first_step
from surestep.trainer.start_report import record_start, report_start
from surestep.trainer.trackers import TrackerThreads

if TYPE_CHECKING:
    from surestep.mirror.uploader import Uploader


@suggest_arguments(ConfigError, argument_instead)
def prepare(
    task: Task,
    config: Config,
    *,
    run: str | Path | None = None,
    resume: Resume = "auto",
    allow: Sequence[str] = (),
    from_: str | None = None,
    callbacks: Sequence[Callback] = (),
    trackers: Sequence[Tracker] = (),
    origin: TaskOrigin | None = None,
) -> Session:
    """Check the task, open the run folder, resume the run if there is one, and return a Session.

    Args:
        task: what to train.
        config: the options.
        run: run folder; the default is `runs/<name>-<time>`. An address, such as
            "s3://bucket/run", is a mirror: the run is fetched from it and copied to it.
        resume: if the folder has a run, "auto" resumes it if all differences are safe or allowed,
            and "never" raises an error; "must" raises an error if there is no run to resume.
        allow: names of what may differ from the run on resume, such as ("optim.lr",).
        from_: a checkpoint of another run to start from: "RUN@STEP", "RUN@best" or "RUN@last".
        callbacks: called at the hooks of the run.
        trackers: get what the run records, beside those of `logging.trackers`.
        origin: where the Task came from.

    Returns:
        The open Session. Close it, or use it in a `with` statement.

    Raises:
        ConfigError, TaskError, DataError: an option is invalid, or the task does not fit together.
        RunError: the folder is locked, cannot be written, or has a run with a different config.
        CheckpointError: there is no checkpoint to resume from, and there must be.

    Example:
        >>> import torch
        >>> import surestep
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y))
        >>> config = surestep.Config(max_steps=3, batch_size=16, logging={"progress": "quiet"})
        >>> with surestep.prepare(task, config, run="runs/prepared") as session:
        ...     steps = [session.state.progress.step for _ in session.steps()]
        >>> steps
        [1, 2, 3]
    """
    start_time, origin, start = time.monotonic(), origin or TaskOrigin(), working_directory()
    check_arguments(task, config, run, callbacks, trackers)
    check_resume_arguments(resume, allow, from_)
    config, folder = resolve_address(config, run)
    opened, noting = Opened(), NotChecked()
    try:
        planned = plan_task(task, config, origin=origin)
        check_restarts(planned.system.launched, folder)
        world = opened.join_ranks(planned, origin)
        recorder = opened.open_folder(folder, start, origin, planned.plan)
        if config.optim.lr == FIND:
            from surestep.trainer.find_lr import find_at_start  # few runs need it

            planned = find_at_start(planned, origin, recorder, world, resume, from_)
        parent = from_ and str(fix_path(Path(from_), start))
        decide = partial(decide_resume, recorder, origin, planned, resume, allow, parent)
        decision = broadcast_resume_decision(world, decide)
        planned, known = plan_first_sizes(world, planned, origin, recorder, decision)
        plan = planned.plan
        senders = TrackerThreads(plan, trackers, planned.model, world, decision, recorder)
        callbacks = [*callbacks, *plugin_callbacks(plan)]
        starting = Failure("before the first step", planned, planned.model)
        with world.explain_errors(), explain_memory_errors(starting):
            session, built, init, callbacks = _open_session(planned, decision, opened, callbacks)
        display = open_progress(plan, session.state.progress.step, is_shown=world.is_first)
        in_background: list[InBackground] = [*senders.followers, *opened.mirrors]
        parts = list_parts(session, built, recorder, display, callbacks, in_background, start_time)
        closers = opened.closers(session, senders)
        session.open(parts, display, closers, is_saved=decision.loads_own_state)
        fit_memory(session, planned, origin, recorder, known)
        report_start(session, recorder, decision, init, planned.range_test)
        if not session.finished:
            session.checks.check_data(decision.identity, is_resumed=decision.checkpoint is not None)
            if decision.resets_best:
                session.save()  # with the new best; and the other run may delete its checkpoint
        for begin in (senders.start, *(mirror.start for mirror in opened.mirrors)):
            begin()
        attach_signals(opened.signals, session)
        session.list_not_checked(noting.notes)
        return session
    except BaseException as error:
        opened.close_after(error)
        if isinstance(error, SurestepError):  # its message says what to change
            raise error.with_traceback(None) from error.__cause__
        raise
    finally:
        noting.close()


class Opened:
    """What the start of a run opens: a session closes it, or `close_after()` if there is none.

    Attributes:
        settings: closes what a session has while it is open.
        mirrors: of the run, at most one.
        world: the ranks.
        recorder: of the run folder; None until it is open.
        signals: raise an error before the first step.
    """

    def __init__(self) -> None:
        self.settings = ExitStack()
        self.mirrors: list[Uploader] = []
        self.world: Communicator = ALONE
        self.recorder: RunWriter | None = None
        self.signals = stop_before_first_step()

    def join_ranks(self, planned: PreparedTask, origin: TaskOrigin) -> Communicator:
        """Choose the device, which NCCL uses, join the process group, and compare the ranks."""
        plan, launched = planned.plan, planned.system.launched
        self.settings.enter_context(torch_settings(plan))
        timeouts = GroupTimeouts(plan.parallel_start_timeout_s, plan.parallel_timeout_s)
        joined = join_process_group(launched, backend=plan.parallel_backend, timeouts=timeouts)
        self.world = self.settings.enter_context(joined)
        check_same_setup(self.world, origin, planned)
        return self.world

    def open_folder(
        self, folder: RunFolder, start: str | None, origin: TaskOrigin, plan: Plan
    ) -> RunWriter:
        """Open the run folder and its mirror on rank 0; `start` is the first working directory."""
        on_first = partial(open_folder, folder, start, origin, plan, self.world, self.mirrors)
        self.recorder = open_run_folder(self.world, on_first, plan=plan)
        return self.recorder

    def closers(self, session: Session, trackers: TrackerThreads) -> list[Callable[[], None]]:
        """Return what a session calls last when it closes, in order."""
        loop, messages = session.loop, session.messages
        mirrors = [
            lambda mirror=mirror: mirror.close(messages.print_line, messages.display)
            for mirror in self.mirrors
        ]
        return [lambda: trackers.finish(loop, messages), *mirrors, self.signals.close]

    def close_after(self, error: BaseException) -> None:
        """Close what is open, since an error ends the start."""
        self.world.failed(error)
        if self.recorder is not None:
            self.recorder.discard(error)
        self.settings.close()
        for mirror in self.mirrors:
            mirror.discard()
        self.signals.close_after(error)


def _open_session(
    planned: PreparedTask,
    decision: ResumeDecision,
    opened: Opened,
    callbacks: Sequence[Callback],
) -> tuple[Session, BuiltLoop, InitReport | None, Sequence[Callback]]:
    """Make the session, load its state, and write what it is to its folder.

    Returns:
        The session, its loop, what the initial weights were read from, and the callbacks, with
        what records for those that only declare it.
    """
    checkpoint, plan, task = decision.checkpoint, planned.plan, planned.task
    world, settings, recorder = opened.world, opened.settings, opened.recorder
    assert recorder is not None
    init = None
    if checkpoint is None or checkpoint.record.get("base"):  # it leaves out frozen weights
        init = load_init_weights(planned.model, task.init)
    if checkpoint is None:
        check_same_weights(world, planned.model)
    is_fresh = checkpoint is None and init is None
    built = build(planned, settings, callbacks, fresh=is_fresh, world=world)
    loop = built.loop
    evaluator = Evaluator(plan, task, loop, make_eval_loaders(planned))
    evaluator.check_val_sets()
    session = Session(
        plan,
        task,
        loop,
        evaluator,
        recorder,
        settings,
        planned.system,
        finished=decision.finished,
        ignored=describe_ignored(planned.config),
    )
    if checkpoint is not None:
        load_checkpoint(world, checkpoint, session.state)
        if isinstance(source := loop.loader.source, StreamLoader):
            source.may_differ = decision.parent is not None or may_change_data(decision.changes)
    check_can_be_saved(session.state, is_started=False)
    if not decision.finished:  # before the folder is a run: this may reject a callback
        callbacks = open_callbacks(callbacks, session, recorder)
    is_other_set = measure_on(plan, session.state, decision.identity["validation"], task)
    if decision.is_other_metric or is_other_set:
        for plateau in (session.state.plateau, *session.state.plateaus.values()):
            plateau.forget()
    if decision.resets_best:
        reset_best(plan, session.state)

    def record_stall(text: str, statuses: list[RankStatus]) -> None:
        ranks = [asdict(status) for status in statuses]
        recorder.event("stall", step=session.state.progress.step, text=text, ranks=ranks)

    if world.monitor is not None:
        world.monitor.attach(lambda: session.state.progress.step, record_stall)
    if not decision.finished:
        run_on_rank_zero(world, lambda: record_start(recorder, decision, planned, session, init))
    return session, built, init, callbacks
