"""From a Task and a Config to a Session that is ready for its first step."""

import itertools
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from multiprocessing import current_process
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from surestep.base import torch_release
from surestep.base.arguments import suggest_arguments
from surestep.base.errors import ConfigError, RunError, SurestepError, TaskError
from surestep.base.locations import is_recorded
from surestep.base.paths import (
    cache_folder,
    check_mirror_address,
    check_slashes,
    fix_path,
    reject_pattern,
    working_directory,
)
from surestep.base.text import describe_value, print_escaped
from surestep.base.torch_release import describe_newer
from surestep.config.config import Config, argument_instead, option_info, plugin_options
from surestep.config.option import is_off
from surestep.engine.data.stream_loader import StreamLoader, describe_resume
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.distributed.process_group import join_process_group
from surestep.engine.distributed.rank_status import RankStatus
from surestep.engine.model.precision import torch_settings
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.not_checked import NotChecked
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.profiler import Profile
from surestep.engine.step.callback import Callback, check_hooks
from surestep.engine.step.layer_norms import LayerNormMeter
from surestep.engine.task.init_weights import InitReport
from surestep.engine.task.task import Task
from surestep.mirror.link import find_address
from surestep.mirror.open import adopt_copy, check_typed, open_mirror
from surestep.mirror.uploader import Uploader
from surestep.record.checkpoint.load import unmatched_states
from surestep.record.checkpoint.staging import check_can_be_saved
from surestep.record.io import os_error_hint
from surestep.record.pretrained import load_init_weights
from surestep.record.progress_display import NullProgress, TqdmProgress, open_progress
from surestep.record.run_writer import RunWriter
from surestep.tracking.graph import WriteGraph
from surestep.tracking.histograms import RecordHistograms
from surestep.tracking.tracker import Tracker
from surestep.trainer.best_metric import measure_on, reset_best
from surestep.trainer.build import build
from surestep.trainer.checkpointing import check_disk_space
from surestep.trainer.config_diff import may_change_data, table
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.own_loop import describe_ignored
from surestep.trainer.planning import (
    PreparedTask,
    TaskOrigin,
    make_eval_loaders,
    plan_task,
    train_samples,
)
from surestep.trainer.rank_consistency import check_same_setup, check_same_weights
from surestep.trainer.rank_zero import (
    broadcast_resume_decision,
    load_checkpoint,
    open_run_folder,
    run_on_rank_zero,
)
from surestep.trainer.resume import Resume, ResumeDecision, check_resume_arguments, decide_resume
from surestep.trainer.session import Session
from surestep.trainer.signals import attach_signals, stop_before_first_step
from surestep.trainer.spike_rollback import SpikeWatch
from surestep.trainer.trackers import TrackerThreads, check_trackers


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
    _check_main_guard()
    check_resume_arguments(resume, allow, from_)
    config, folder = _resolve_address(config, run)
    settings, recorder, world = ExitStack(), None, ALONE
    mirrors: list[Uploader] = []  # at most one
    signals, noting = stop_before_first_step(), NotChecked()
    try:
        planned = plan_task(task, config, origin=origin)
        plan, launched = planned.plan, planned.system.launched
        _check_restarts(launched, folder)
        settings.enter_context(torch_settings(plan))  # sets the device, which NCCL uses
        timeouts = GroupTimeouts(plan.parallel_start_timeout_s, plan.parallel_timeout_s)
        joined = join_process_group(launched, backend=plan.parallel_backend, timeouts=timeouts)
        world = settings.enter_context(joined)
        check_same_setup(world, origin, planned)
        open_folder = partial(_open_folder, folder, start, origin, plan, world, mirrors)
        recorder = writer = open_run_folder(world, open_folder, plan=plan)
        parent = from_ and str(fix_path(Path(from_), start))
        decision = broadcast_resume_decision(
            world, lambda: decide_resume(writer, origin, planned, resume, allow, parent)
        )
        tracked = TrackerThreads(plan, trackers, planned.model, world, decision)
        with world.explain_errors():
            session, init = _open_session(planned, decision, writer, settings, world, callbacks)
        record_start = partial(_record_start, writer, decision, planned, session, init)
        if not decision.finished:
            run_on_rank_zero(world, record_start)
        if plan.max_time is not None:
            session.loop.deadline = start_time + plan.max_time.amount * 60
        _start_session(session, writer, decision, tracked, mirrors, init)
        attach_signals(signals, session)
        _list_not_checked(session, writer, noting.notes)
        return session
    except BaseException as error:
        world.failed(error)
        if recorder is not None:
            recorder.discard(error)
        settings.close()
        for mirror in mirrors:
            mirror.discard()
        signals.close_after(error)
        if isinstance(error, SurestepError):  # its message says what to change
            raise error.with_traceback(None) from error.__cause__
        raise
    finally:
        noting.close()


def _list_not_checked(session: Session, writer: RunWriter, notes: dict[str, str]) -> None:
    """List in the Plan of a run what could not be checked."""
    if notes:
        session.plan = session.plan.list_not_checked(notes)
        if session.loop.world.is_first and not session.finished:
            writer.write_plan(session.plan)


def _check_restarts(launched: LaunchInfo, folder: "Path | _CacheFolder | None") -> None:
    """Raise an error if the launcher restarts processes that have no run folder."""
    if folder is None and launched.restarts:
        raise ConfigError(
            "No run folder is set, and the launcher restarts the processes up to "
            f"{launched.restarts} times: each restart would begin a new run. Set --run-folder "
            "runs/NAME (run= in Python)."
        )


class _CacheFolder(NamedTuple):
    """The local folder of a run that is given by the address of its mirror."""

    path: Path


def _resolve_address(
    config: Config, run: str | Path | None
) -> tuple[Config, Path | _CacheFolder | None]:
    """Return the run folder, with the mirror in the Config if the run is given by its address."""
    try:
        if run is None or (found := find_address(run)) is None:
            check_slashes(str(run))
            return config, None if run is None else Path(run)
        address = check_mirror_address(found)
    except ValueError as error:
        raise ConfigError(f"The run folder is an address, which {error}.") from None
    known = config.set_options().get("checkpoint.mirror")
    if known not in (None, address):
        raise ConfigError(
            f"The run folder is {address}, and checkpoint.mirror is {known}: a run has one mirror. "
            "Set only one of them."
        )
    config = config.replace_options({"checkpoint.mirror": address})
    return config, _CacheFolder(cache_folder(address))


def _open_folder(
    folder: Path | _CacheFolder | None,
    start: str | None,
    origin: TaskOrigin,
    plan: Plan,
    world: Communicator,
    mirrors: list[Uploader],
) -> RunWriter:
    """Open the run folder on rank 0; append its mirror, from which a cache folder is filled.

    `start` is the working directory before the model was built.
    """
    is_cache = isinstance(folder, _CacheFolder)
    path = folder.path if isinstance(folder, _CacheFolder) else folder
    if path is None:
        path = default_folder(origin.name, start)
    path = fix_path(path, start)
    adopt_copy(path)
    if plan.checkpoint_mirror is None:
        return RunWriter(path, made=folder is None, world=world)
    if not is_cache and is_recorded(origin.set_options.get("checkpoint.mirror")):
        check_typed(plan.checkpoint_mirror, path)
    show = partial(print_escaped, file=sys.stderr)
    mirrors.append(open_mirror(plan.checkpoint_mirror, path, show, is_source=is_cache))
    delete = mirrors[-1].pusher.delete_abandoned
    return RunWriter(path, made=folder is None, world=world, delete_abandoned=delete)


def _check_main_guard() -> None:
    """Check that this is not a process of multiprocessing that imports the script."""
    if getattr(current_process(), "_inheriting", False):
        raise ConfigError(
            "A new process of multiprocessing, such as a data worker that is spawned, imports the "
            "script, which starts the run again there. Put the lines that train under "
            "if __name__ == '__main__':."
        )


def check_arguments(task: Any, config: Any, run: Any, callbacks: Any, trackers: Any) -> None:
    """Check the types of the arguments, and that each hook of a callback exists."""
    check_trackers(trackers)
    if not isinstance(task, Task):
        hint = "Pass surestep.Task(model=net, loss=..., train=(x, y))."
        if callable(task) and not isinstance(task, nn.Module | type):
            hint = "Call it, and pass the Task that it returns."
        raise TaskError(f"task is {describe_value(task)}, not a Task. {hint}")
    if not isinstance(config, Config):
        raise ConfigError(
            f"config is {describe_value(config)}. Pass surestep.Config(epochs=10, ...)."
        )
    if run is not None and not isinstance(run, str | os.PathLike):
        raise ConfigError(f"run={run!r} is not a path. Pass the run folder: run='runs/mine'.")
    if run is not None:
        reject_pattern(run)
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ConfigError(
            f"callbacks is {describe_value(callbacks)}, not a list. Pass objects: "
            "callbacks=[MyCallback()]."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks has {describe_value(callback)}, not an object of a surestep.Callback. "
                "Derive your class from it, and pass an object: callbacks=[MyCallback()]."
            )
        check_hooks(callback)


def _plugin_callbacks(plan: Plan) -> list[Callback]:
    """Return the callbacks of the options that packages add, and that are not off."""
    found = []
    for name in plugin_options():
        info, value = option_info(name), getattr(plan, name)
        if info is None or info.callback is None or is_off(value):
            continue
        found.append(callback := info.callback(value))
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"The callback of the option {name!r} returned {describe_value(callback)}, not an "
                "object of a surestep.Callback. Change it in the package that adds the option."
            )
        check_hooks(callback)
    return found


def default_folder(name: str, start: str | None = None) -> Path:
    """Make `runs/<name>-<time>`, with a number after it if that exists."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for count in itertools.count(1):
        folder = Path("runs") / (stem if count == 1 else f"{stem}-{count}")
        try:
            fix_path(folder, start).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(
                f"{folder} cannot be created: {error.strerror}. {os_error_hint(error)}"
            ) from error
        return folder
    raise AssertionError("count() has no end")


def _open_session(
    planned: PreparedTask,
    decision: ResumeDecision,
    recorder: RunWriter,
    settings: ExitStack,
    world: Communicator,
    callbacks: Sequence[Callback],
) -> tuple[Session, InitReport | None]:
    """Make the session and load its state; return also what the initial weights were read from."""
    checkpoint, plan, task = decision.checkpoint, planned.plan, planned.task
    init = None
    if checkpoint is None or checkpoint.record.get("base"):  # it leaves out frozen weights
        init = load_init_weights(planned.model, task.init)
    if checkpoint is None:
        check_same_weights(world, planned.model)
    is_fresh = checkpoint is None and init is None
    every_callback = [*callbacks, *_plugin_callbacks(plan)]
    loop = build(planned, settings, every_callback, fresh=is_fresh, world=world)
    evaluator = Evaluator(plan, task, loop, make_eval_loaders(planned))
    evaluator.check_val_sets()
    session = Session(plan, task, loop, evaluator, recorder, settings, planned.system)
    session.ignored = describe_ignored(planned.config)
    if checkpoint is not None:
        load_checkpoint(world, checkpoint, session.state)
        if isinstance(source := loop.loader.source, StreamLoader):
            source.may_differ = decision.parent is not None or may_change_data(decision.changes)
    check_can_be_saved(session.state, is_started=False)
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
        session.loop.after_first.append(world.monitor.timeouts.use_steady_timeout)
    return session, init


def _record_start(
    recorder: RunWriter,
    decision: ResumeDecision,
    planned: PreparedTask,
    session: Session,
    init: InitReport | None,
) -> None:
    plan = planned.plan
    notes = [check_disk_space(recorder.folder, plan, session.state)]
    size = planned.config.set_options().get("batch_size")
    samples = train_samples(planned.task, plan.exclude_samples)
    if size is not None and samples is not None and size > samples:
        notes.append(
            f"batch_size={size} is larger than the {samples} training samples, so every step "
            f"takes all of them. Use batch_size={samples} or less."
        )
    recorder.warnings += filter(None, notes)
    events = [] if decision.parent is None else [("branch", decision.identity["from"])]
    if decision.changes:
        events.append(("changes", {"changes": [change.as_json() for change in decision.changes]}))
    recorder.start(decision.identity, plan, planned.system, Path.cwd(), events=events)
    if session.loop.signature is not None:
        recorder.write("signature.json", session.loop.signature)
    if init is not None:
        recorder.event("init", **asdict(init))


def _start_session(
    session: Session,
    recorder: RunWriter,
    decision: ResumeDecision,
    trackers: TrackerThreads,
    mirrors: Sequence[Uploader],
    init: InitReport | None,
) -> None:
    """Open the progress display, report where the run is and what differs, and watch it."""
    checkpoint, parent, plan = decision.checkpoint, decision.parent, session.plan
    own = checkpoint.path if checkpoint is not None and parent is None else None
    step, display = session.state.progress.step, NullProgress()
    if session.loop.world.is_first:
        display = open_progress(plan, step)
    if isinstance(display, TqdmProgress):
        session.loop.add_callback(display)
    session.open(display, own, finished=decision.finished)
    session.loop.notices.append(recorder.notice)
    for text in (*recorder.warnings, *filter(None, [describe_newer(torch_release.VERSION)])):
        session.notify(text)
    if (size := session.loop.world.size) > 1:
        session.print_line(describe_ranks(plan, size))
    if plan.profile is not None and not session.finished:
        first, last = map(int, plan.profile.split(":"))
        if step >= last:
            session.print_line(f"profile={plan.profile!r} is over: the run is at step {step}.")
        profile = Profile(first, last, session.run.path / "profile", session.loop)
        session.loop.add_callback(profile)
        session.loop.notices.append(profile.notice)
    if parent is None:
        _report_progress(session, recorder)
    else:
        session.print_line(f"{session.run.path} starts from step {step} of {parent}.")
    if not decision.finished:
        session.checks.check_data(decision.identity, is_resumed=checkpoint is not None)
        if decision.resets_best:
            session.save()  # with the new best; and the other run may delete its checkpoint
        if checkpoint is not None:
            for line in unmatched_states(checkpoint.record, session.state):
                session.print_line(line)
    if "balanced" in plan.loss:
        session.print_line(f"{plan.loss}: {plan.reason('loss')}")
    if decision.changes:
        session.print_line("\n".join(["What differs from before:", *table(decision.changes)]))
    if plan.on_spike != "off" and not session.finished:
        session.loop.on_log.append(SpikeWatch(session, recorder))
        if plan.on_spike == "rollback" and not step:
            session.saving.save_async()  # the first checkpoint to go back to
    _add_records(session, recorder)
    trackers.start(session, recorder, display)
    for mirror in mirrors:
        mirror.start()
        session.loop.notices.append(mirror.notice)
        session.at_end(partial(mirror.close, session.print_line, display), is_last=True)
    if init is not None:
        session.print_line(init.sentence())


def _add_records(session: Session, recorder: RunWriter) -> None:
    """Record norms and histograms by layer and the graph of the model, if they are wanted."""
    plan, loop = session.plan, session.loop
    if session.finished:
        return
    if plan.logging_per_layer:
        loop.layer_norms = LayerNormMeter(loop.context.state, loop.context.strategy)
    if plan.logging_histograms is not None:
        period = plan.logging_histograms.steps(plan.steps_per_epoch)
        record = partial(recorder.event, "histograms")
        loop.add_callback(RecordHistograms(period, record, lambda: session.closed))
    if plan.logging_graph and loop.world.is_first:
        graph = WriteGraph(session.run.path / "tensorboard")
        loop.add_callback(graph)
        loop.notices.append(graph.notice)


def describe_ranks(plan: Plan, size: int) -> str:
    """Return a line with the number of ranks, their backend and device, and the strategy."""
    strategy = strategy_class(plan.parallel_strategy).label(plan)
    return f"{size} ranks ({plan.parallel_backend}, {plan.device.type}), {strategy}."


def _report_progress(session: Session, recorder: RunWriter) -> None:
    progress, folder = session.state.progress, session.run.path
    launched = session.system.launched
    restart = f"Restart {launched.attempt} of {launched.restarts}: " if launched.attempt else ""
    if recorder.passed_over:
        reasons = "\n".join(corrupt.reason for corrupt in recorder.passed_over)
        session.print_line(f"{reasons} Going back to the newest good one: step {progress.step}.")
    if session.finished:
        session.print_line(f"{folder} is finished: {progress.step} steps are done.")
    elif progress.step:
        recorder.event("resume", step=progress.step)
        how = describe_resume(session.loop.loader.source, session.plan, progress)
        is_last = progress.step >= session.plan.total_steps
        where = "which is the last" if is_last else f"epoch {progress.epoch + 1}"
        session.print_line(f"{restart}Resuming {folder} from step {progress.step}, {where}{how}.")
    elif recorder.published:
        recorder.event("restart", step=0)
        session.print_line(f"{restart}Starting from scratch: {folder} has no checkpoint yet.")
