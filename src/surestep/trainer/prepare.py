"""From a Task and a Config to a Session that is ready to take its first step."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from surestep.base.config import Config
from surestep.base.errors import ConfigError, RunError
from surestep.base.local import local_path
from surestep.engine.callback import Callback
from surestep.engine.model.initial import Started
from surestep.engine.parallel.debug import flight_recorder, nccl_debug
from surestep.engine.parallel.group import open_world
from surestep.engine.parallel.patience import Patience
from surestep.engine.parallel.rank_log import FOLDER, Fork, rank_log
from surestep.engine.parallel.warned import Warned, warned_once
from surestep.engine.parallel.world import ALONE, World
from surestep.engine.plan import Plan
from surestep.engine.precision import process_settings
from surestep.engine.task import Task
from surestep.record.checkpoint.snapshot import check_before_first_step
from surestep.record.files import disk_hint
from surestep.record.recorder import Recorder
from surestep.trainer.alike import check_alike, check_same_weights
from surestep.trainer.arguments import check_arguments
from surestep.trainer.build import build
from surestep.trainer.gauge import Gauge
from surestep.trainer.judge import judge_anew
from surestep.trainer.opening import begin, followed
from surestep.trainer.planning import Origin, Planned, feeds, plan_task, start, train_samples
from surestep.trainer.resuming import Going, Resume, going_on, wish
from surestep.trainer.room import foresee
from surestep.trainer.session import Session
from surestep.trainer.together import decided, first, held, loaded


def prepare(
    task: Task,
    config: Config,
    *,
    run: str | Path | None = None,
    resume: Resume = "auto",
    allow: Sequence[str] = (),
    from_: str | None = None,
    callbacks: Sequence[Callback] = (),
    origin: Origin | None = None,
) -> Session:
    """Make a Session: check the task, open the run folder, and go on where the run stands.

    Args:
        task: what is trained.
        config: what is asked.
        run: the run folder; `runs/<name>-<time>` where not said.
        resume: "auto" goes on where the folder holds a run, if what differs from it is harmless
            or allowed; "never" refuses to; "must" refuses to start anew.
        allow: names of what may differ when a run goes on, such as ("optim.lr",).
        from_: a checkpoint of another run that a new one starts from: "RUN@STEP", "RUN@best" or
            "RUN@last".
        callbacks: watchers.
        origin: where the Task came from.

    Raises:
        ConfigError, TaskError, DataError: a wish that cannot be kept, or parts that do not fit.
        RunError: the folder is held, cannot be written, or holds a run that differs.
        CheckpointError: there is no checkpoint to go on from, and there must be.
    """
    began, origin = time.monotonic(), origin or Origin()
    check_arguments(task, config, run, callbacks)
    said = wish(resume, allow, from_)
    place = None if run is None else local_path(run)
    settings, recorder, world = ExitStack(), None, ALONE
    try:
        warned = settings.enter_context(warned_once())
        planned = plan_task(task, config, origin=origin)
        _check_restarts(place, planned.facts.launched.restarts)
        settings.enter_context(process_settings(planned.plan))  # the device is NCCL's too
        world = settings.enter_context(_world(planned))
        check_alike(world, origin, planned)
        recorder = hold = held(world, lambda: _folder(place, origin, world), plan=planned.plan)
        log = settings.enter_context(_logged(recorder.folder, planned.plan, world, warned))
        going = decided(world, lambda: going_on(hold, origin, planned, said))
        with world.explaining():
            session, started = _open(planned, going, recorder, settings, world, callbacks)
        if not going.finished:
            begun = partial(_record_start, recorder, going, planned, session, started)
            first(world, begun, tell=lambda _: None, follow=lambda _: None)
        if planned.plan.max_time is not None:
            session.loop.deadline = began + planned.plan.max_time.amount * 60
        begin(session, recorder, going, log)
        _say_first(session, planned, started)
        return session
    except BaseException as error:
        world.failed(error)
        if recorder is not None:
            recorder.discard()
        settings.close()
        raise


@contextmanager
def _world(planned: Planned) -> Iterator[World]:
    plan = planned.plan
    patience = Patience(plan.parallel_start_timeout_s, plan.parallel_timeout_s)
    launched, backend = planned.facts.launched, plan.parallel_backend
    with (
        nccl_debug(on=plan.parallel_nccl_debug),
        open_world(launched, backend=backend, patience=patience) as world,
    ):
        yield world


@contextmanager
def _logged(folder: Path, plan: Plan, world: World, warned: Warned | None) -> Iterator[Fork | None]:
    """Let each rank write a file where it shall, and warn of what waited until there is one."""
    each_its_own = plan.logging_ranks == "all"
    with ExitStack() as stack:
        try:
            stack.enter_context(flight_recorder(folder, on=plan.parallel_backend == "nccl"))
            log = stack.enter_context(rank_log(folder, world, on=each_its_own))
        except OSError as error:
            raise RunError(
                f"{folder / FOLDER} cannot be written: {error.strerror}. {disk_hint(error)}"
            ) from error
        if warned is not None:
            warned.release(ALONE if each_its_own else world)
        yield log


def _folder(place: Path | None, origin: Origin, world: World) -> Recorder:
    folder = default_folder(origin.name) if place is None else place
    return Recorder(folder, made=place is None, world=world)


def _open(
    planned: Planned,
    going: Going,
    recorder: Recorder,
    settings: ExitStack,
    world: World,
    callbacks: Sequence[Callback],
) -> tuple[Session, Started | None]:
    """Make the session and load its state; return too what the first weights were read from."""
    checkpoint = going.checkpoint
    leaves_out = checkpoint is not None and bool(checkpoint.record.get("base"))
    started = start(planned) if checkpoint is None or leaves_out else None
    fresh = checkpoint is None and started is None
    if checkpoint is None:
        check_same_weights(world, planned.model)
    loop = build(planned, settings, callbacks, fresh=fresh, world=world)
    plan, task = planned.plan, planned.task
    gauge = Gauge(plan, task, loop, feeds(planned))
    gauge.check_in_memory()
    session = Session(plan, task, loop, gauge, recorder, settings, planned.facts)
    if checkpoint is not None:
        loaded(world, checkpoint, session.state)
    check_before_first_step(session.state)
    if going.other_metric:
        session.state.plateau.forget()
    if going.judges_anew:
        judge_anew(plan, session.state)
    followed(world, session, recorder)
    return session, started


def _check_restarts(place: Path | None, restarts: int) -> None:
    if place is None and restarts:
        raise ConfigError(
            f"No run folder is said, and the launcher starts the processes up to {restarts} times "
            "again: each time would begin a new run. Say --run-folder runs/NAME (run= in Python)."
        )


def _record_start(
    recorder: Recorder,
    going: Going,
    planned: Planned,
    session: Session,
    started: Started | None,
) -> None:
    told = foresee(recorder.folder, planned.plan, session.state)
    recorder.told += [each for each in (told, _note_large_batch(planned)) if each]
    recorder.start(going.asked, planned.plan, planned.facts, Path.cwd(), events=going.events())
    if started is not None:
        recorder.event("init", **asdict(started))


def _note_large_batch(planned: Planned) -> str | None:
    """Return what to say if the batch size that was set is larger than the training data."""
    size = planned.config.said().get("batch_size")
    samples = train_samples(planned.task, planned.plan.skip_samples)
    if size is None or samples is None or size <= samples:
        return None
    return (
        f"batch_size={size} is larger than the {samples} training samples: every step takes all of "
        f"them. Use batch_size={samples} or less."
    )


def _say_first(session: Session, planned: Planned, started: Started | None) -> None:
    """Say what became of the first weights, and what was read from all of the data."""
    if started is not None:
        session.say(started.sentence())
    if "balanced" in planned.loss.called:
        session.say(f"{planned.loss.called}: {planned.plan.reason('loss')}")


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
                f"{folder} cannot be made: {error.strerror}. {disk_hint(error)}"
            ) from error
        return folder
    raise AssertionError("count() has no end")
