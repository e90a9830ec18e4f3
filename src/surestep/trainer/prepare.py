"""From a Task and a Config to a Session that is ready to take its first step."""

import itertools
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from surestep.base.errors import ConfigError, RunError, TaskError
from surestep.base.paths import require_local_path
from surestep.config.config import Config
from surestep.engine.distributed.communicator import ALONE, Communicator
from surestep.engine.distributed.hang_monitor import GroupTimeouts
from surestep.engine.distributed.process_group import join_process_group
from surestep.engine.model.precision import torch_settings
from surestep.engine.step.callback import Callback, check_hooks
from surestep.engine.task.init_weights import InitReport
from surestep.engine.task.task import Task
from surestep.record.checkpoint.staging import check_can_be_saved
from surestep.record.io import os_error_hint
from surestep.record.run_writer import RunWriter
from surestep.trainer.best_metric import reset_best
from surestep.trainer.build import build
from surestep.trainer.checkpointing import check_disk_space
from surestep.trainer.evaluator import Evaluator
from surestep.trainer.planning import (
    PreparedTask,
    TaskOrigin,
    apply_init_weights,
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
from surestep.trainer.resume import Resume, ResumeDecision, decide_resume, parse_resume_request
from surestep.trainer.session import Session
from surestep.trainer.session_start import attach_hang_monitor, start_session


def prepare(
    task: Task,
    config: Config,
    *,
    run: str | Path | None = None,
    resume: Resume = "auto",
    allow: Sequence[str] = (),
    from_: str | None = None,
    callbacks: Sequence[Callback] = (),
    origin: TaskOrigin | None = None,
) -> Session:
    """Check the task, open the run folder, resume the run if there is one, and return a Session.

    Args:
        task: what to train.
        config: the options.
        run: run folder; the default is `runs/<name>-<time>`.
        resume: if the folder has a run, "auto" resumes it if all differences are safe or allowed,
            and "never" raises an error; "must" raises an error if there is no run to resume.
        allow: names of what may differ from the run on resume, such as ("optim.lr",).
        from_: a checkpoint of another run to start from: "RUN@STEP", "RUN@best" or "RUN@last".
        callbacks: called at the hooks of the run.
        origin: where the Task came from.

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
    began, origin = time.monotonic(), origin or TaskOrigin()
    check_arguments(task, config, run, callbacks)
    said = parse_resume_request(resume, allow, from_)
    place = None if run is None else require_local_path(run)
    settings, recorder, world = ExitStack(), None, ALONE
    try:
        planned = plan_task(task, config, origin=origin)
        _check_restarts(place, planned.system.launched.restarts)
        settings.enter_context(torch_settings(planned.plan))  # the device is NCCL's too
        world = settings.enter_context(_join(planned))
        check_same_setup(world, origin, planned)
        recorder = hold = open_run_folder(
            world, lambda: _folder(place, origin, world), plan=planned.plan
        )
        going = broadcast_resume_decision(world, lambda: decide_resume(hold, origin, planned, said))
        with world.explain_errors():
            session, started = _open(planned, going, recorder, settings, world, callbacks)
        if not going.finished:
            begun = partial(_record_start, recorder, going, planned, session, started)
            run_on_rank_zero(world, begun, tell=lambda _: None, follow=lambda _: None)
        if planned.plan.max_time is not None:
            session.loop.deadline = began + planned.plan.max_time.amount * 60
        start_session(session, recorder, going)
        _say_first(session, planned, started)
        return session
    except BaseException as error:
        world.failed(error)
        if recorder is not None:
            recorder.discard()
        settings.close()
        raise


def _join(planned: PreparedTask) -> AbstractContextManager[Communicator]:
    """Return the context in which the processes of the run are one group."""
    plan = planned.plan
    timeouts = GroupTimeouts(plan.parallel_start_timeout_s, plan.parallel_timeout_s)
    launched = planned.system.launched
    return join_process_group(launched, backend=plan.parallel_backend, timeouts=timeouts)


def _folder(place: Path | None, origin: TaskOrigin, world: Communicator) -> RunWriter:
    folder = default_folder(origin.name) if place is None else place
    return RunWriter(folder, made=place is None, world=world)


def _open(
    planned: PreparedTask,
    going: ResumeDecision,
    recorder: RunWriter,
    settings: ExitStack,
    world: Communicator,
    callbacks: Sequence[Callback],
) -> tuple[Session, InitReport | None]:
    """Make the session and load its state; return too what the first weights were read from."""
    checkpoint = going.checkpoint
    leaves_out = checkpoint is not None and bool(checkpoint.record.get("base"))
    started = apply_init_weights(planned) if checkpoint is None or leaves_out else None
    fresh = checkpoint is None and started is None
    if checkpoint is None:
        check_same_weights(world, planned.model)
    loop = build(planned, settings, callbacks, fresh=fresh, world=world)
    plan, task = planned.plan, planned.task
    gauge = Evaluator(plan, task, loop, make_eval_loaders(planned))
    gauge.check_in_memory()
    session = Session(plan, task, loop, gauge, recorder, settings, planned.system)
    if checkpoint is not None:
        load_checkpoint(world, checkpoint, session.state)
    check_can_be_saved(session.state, with_callbacks=False)
    if going.other_metric:
        session.state.plateau.forget()
    if going.judges_anew:
        reset_best(plan, session.state)
    attach_hang_monitor(world, session, recorder)
    return session, started


def _check_restarts(place: Path | None, restarts: int) -> None:
    if place is None and restarts:
        raise ConfigError(
            f"No run folder is said, and the launcher starts the processes up to {restarts} times "
            "again: each time would begin a new run. Say --run-folder runs/NAME (run= in Python)."
        )


def _record_start(
    recorder: RunWriter,
    going: ResumeDecision,
    planned: PreparedTask,
    session: Session,
    started: InitReport | None,
) -> None:
    told = check_disk_space(recorder.folder, planned.plan, session.state)
    recorder.warnings += [each for each in (told, _note_large_batch(planned)) if each]
    recorder.start(going.asked, planned.plan, planned.system, Path.cwd(), events=going.events())
    if started is not None:
        recorder.event("init", **asdict(started))


def _note_large_batch(planned: PreparedTask) -> str | None:
    """Return what to say if the batch size that was set is larger than the training data."""
    size = planned.config.set_options().get("batch_size")
    samples = train_samples(planned.task, planned.plan.exclude_samples)
    if size is None or samples is None or size <= samples:
        return None
    return (
        f"batch_size={size} is larger than the {samples} training samples: every step takes all of "
        f"them. Use batch_size={samples} or less."
    )


def _say_first(session: Session, planned: PreparedTask, started: InitReport | None) -> None:
    """Say what became of the first weights, and what was read from all of the data."""
    if started is not None:
        session.print_line(started.sentence())
    if "balanced" in planned.loss.label:
        session.print_line(f"{planned.loss.label}: {planned.plan.reason('loss')}")


def default_folder(name: str) -> Path:
    """Make `runs/<name>-<time>`, with a number behind it where somebody was faster.

    Raises:
        RunError: the current folder cannot be written.
    """
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for count in itertools.count(1):
        folder = Path("runs") / (stem if count == 1 else f"{stem}-{count}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise RunError(
                f"{folder} cannot be made: {error.strerror}. {os_error_hint(error)}"
            ) from error
        return folder
    raise AssertionError("count() has no end")


def check_arguments(task: Any, config: Any, run: Any, callbacks: Any) -> None:
    """Check that each argument is of its kind.

    Raises:
        TaskError: `task` is not a Task.
        ConfigError: another one is not what it must be.
    """
    if not isinstance(task, Task):
        raise TaskError(f"task is {_shown(task)}. {_task_instead(task)}")
    if not isinstance(config, Config):
        raise ConfigError(
            f"config is a {type(config).__name__}. Give surestep.Config(epochs=10, ...)."
        )
    if run is not None and not isinstance(run, str | os.PathLike):
        raise ConfigError(f"run={run!r} is not a path. Pass the run folder: run='runs/mine'.")
    check_callbacks(callbacks)


def check_callbacks(callbacks: Any) -> None:
    """Check that `callbacks` is a list of callbacks whose hooks exist.

    Raises:
        ConfigError: it is not, and what to write instead.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ConfigError(f"callbacks is {_shown(callbacks)}, not a list. {_list_of(callbacks)}")
    for each in callbacks:
        name = each.__name__ if isinstance(each, type) else type(each).__name__
        if isinstance(each, type) and issubclass(each, Callback):
            raise ConfigError(f"callbacks has the class {name}. Pass an object: {name}().")
        if not isinstance(each, Callback):
            raise ConfigError(
                f"callbacks has {_shown(each)}, which is not a surestep.Callback. {_derived(each)}"
            )
        check_hooks(each)


def _task_instead(value: Any) -> str:
    if isinstance(value, nn.Module) or (isinstance(value, type) and issubclass(value, nn.Module)):
        return "A model goes into a Task: surestep.Task(model=net, loss=..., train=(x, y))."
    if callable(value):
        return "Call it, and pass the Task that it returns."
    return "Pass surestep.Task(model=net, loss=..., train=(x, y))."


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def _list_of(value: Any) -> str:
    """Say which list to write instead of a value."""
    if isinstance(value, Callback):
        return "Write callbacks=[that one]."
    if isinstance(value, type) and issubclass(value, Callback):
        return f"Write callbacks=[{value.__name__}()]."
    if not value:
        return "Leave it out, or write callbacks=[]."
    return f"It takes objects: callbacks=[MyCallback()]. {_derived(value)}"


def _derived(value: Any) -> str:
    """Say how a callback is made of what was given."""
    if type(value).__module__ == "builtins" and not isinstance(value, type):
        return "Derive a class from it: class MyCallback(surestep.Callback)."
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"Derive its class from it: class {name}(surestep.Callback)."
