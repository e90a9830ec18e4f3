"""From a Task and a Config to a Session that is ready to take its first step."""

import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from surestep.base.config import Config
from surestep.base.errors import CheckpointError, ConfigError, RunError, near
from surestep.engine.average import BATCH_NORM, Average, annealed
from surestep.engine.callback import Callback
from surestep.engine.checkpointing import own_checkpointing, uses_own_checkpointing
from surestep.engine.checks.first_batch import check_first_batch
from surestep.engine.checks.parts import check_loss, check_model
from surestep.engine.data.arrange import with_order
from surestep.engine.data.dataset import check_unsampled, loader_settings, samples_of
from surestep.engine.data.feed import Feed, feed, slices_in_memory
from surestep.engine.facts import Facts, read_facts
from surestep.engine.initial import Started, as_init
from surestep.engine.loop import Loop
from surestep.engine.loss import Loss
from surestep.engine.metrics import directions
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.freezing import Watch, freezing, frozen
from surestep.engine.optim.groups import arrange, parameters_of
from surestep.engine.parallel.single import Single
from surestep.engine.plan import Given, Plan
from surestep.engine.precision import autocast, grad_scaler, process_settings
from surestep.engine.resolve import resolve, seed_of
from surestep.engine.schedule import factor
from surestep.engine.seed import ModelRandomness, set_seed
from surestep.engine.state import WHOLE, State, named_trainable
from surestep.engine.step import Buffers, Modes, Parts
from surestep.engine.task import Task
from surestep.record.checkpoint.read import list_checkpoints, load_checkpoint
from surestep.record.files import DISK_HINT, plain
from surestep.record.progress import open_progress
from surestep.record.recorder import Recorder
from surestep.record.weights import load_initial
from surestep.trainer.session import Session

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True)
class Origin:
    """Where a Task came from, for the records.

    Attributes:
        name: what a default run folder is called after.
        recipe: name, path and hash of the recipe's file; empty where there is none.
        parameters: what the recipe's function was called with.
        said: where each option was said, by full name.
    """

    name: str = "run"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """A Task whose model is built and whose Plan is made; nothing is on a device yet."""

    task: Task
    config: Config
    facts: Facts
    plan: Plan
    model: nn.Module
    loss: Loss


def plan_task(task: Task, config: Config, *, origin: Origin | None = None) -> Planned:
    """Build the model after seeding, and decide every option.

    Raises:
        ConfigError, TaskError, DataError: a wish that cannot be kept, or parts that do not fit.
    """
    facts = read_facts()
    task = with_order(task)
    for name, data in task.val_sets().items():
        check_unsampled(data, name)
    if not isinstance(task.model, nn.Module):
        set_seed(seed_of(config))
    model = task.build_model()
    loss = task.build_loss(model)
    check_loss(task.loss)
    given = Given(
        train_samples=samples_of(task.train, "train") if task.order is None else len(task.order),
        order=task.order,
        in_memory=slices_in_memory(task.train, task),
        loader=loader_settings(task.train),
        val_sets=tuple(task.val_sets()),
        val_batch_sizes=tuple(
            own["batch_size"] for data in task.val_sets().values() if (own := loader_settings(data))
        ),
        metrics={
            known: better
            for name, metric in task.metrics.items()
            for known, better in directions(name, metric).items()
        },
        own_optimizer=task.optimizer is not None,
        floating=not any(each.is_complex() for each in named_trainable(model).values()),
        not_splitting=_not_splitting(task, model),
        own_checkpointing=uses_own_checkpointing(model),
        batch_norm=_has(model, BATCH_NORM),
    )
    said = origin.said if origin is not None else {}
    return Planned(task, config, facts, resolve(config, facts, given, origins=said), model, loss)


def _not_splitting(task: Task, model: nn.Module) -> tuple[str, ...]:
    """Name what makes a cut batch give other numbers than the whole one."""
    kinds = {
        "the Task says its loss does not split": not task.splits,
        "batch statistics are the micro-batch's": _has(model, BATCH_NORM),
        "dropout draws for each micro-batch": any(
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            for module in model.modules()
        ),
    }
    return tuple(reason for reason, holds in kinds.items() if holds)


def _has(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


def prepare(
    task: Task,
    config: Config,
    *,
    run: str | Path | None = None,
    resume: Resume = "auto",
    callbacks: Sequence[Callback] = (),
    origin: Origin | None = None,
) -> Session:
    """Make a Session: check the task, open the run folder, and go on where the run stands.

    Args:
        task: what is trained.
        config: what is asked.
        run: the run folder; `runs/<name>-<time>` where not said.
        resume: "auto" goes on where the folder holds an unfinished run with the same config;
            "never" refuses to; "must" refuses to start anew.
        callbacks: watchers.
        origin: where the Task came from.

    Raises:
        ConfigError, TaskError, DataError: a wish that cannot be kept, or parts that do not fit.
        RunError: the folder is held, cannot be written, or holds a run with another config.
    """
    origin = origin or Origin()
    if resume not in get_args(Resume):
        raise ConfigError(f"resume={resume!r} is not known. {near(resume, get_args(Resume))}")
    planned = plan_task(task, config, origin=origin)
    folder = Path(run) if run is not None else default_folder(origin.name)
    recorder = Recorder(folder, made=run is None)
    settings = ExitStack()
    try:
        settings.enter_context(process_settings(planned.plan))
        asked = _asked(origin, config)
        checkpoint = _where_it_stands(recorder, asked, resume)
        started = None if checkpoint is not None else start(planned)
        fresh = checkpoint is None and started is None
        session = _build(planned, recorder, settings, callbacks, fresh=fresh)
        if checkpoint is not None:
            load_checkpoint(checkpoint, session.state)
        finished = recorder.known and _is_finished(recorder)
        if not finished:
            recorder.start(asked, planned.plan, planned.facts, Path.cwd())
            if started is not None:
                recorder.event("init", **asdict(started))
        session.open(open_progress(planned.plan, session.state.place.step), finished=finished)
        if started is not None:
            session.say(started.sentence())
        return session
    except BaseException:
        settings.close()
        recorder.discard()
        raise


def _asked(origin: Origin, config: Config) -> dict[str, Any]:
    return {
        "format": 1,
        "recipe": plain(dict(origin.recipe)),
        "task": plain(dict(origin.parameters)),
        "config": plain(config.said()),
    }


def start(planned: Planned) -> Started | None:
    """Load the weights that the Task starts from into its model; None where it names none.

    Raises:
        CheckpointError: they cannot be read, or do not fit the model.
    """
    init = planned.task.init
    return None if init is None else load_initial(planned.model, as_init(init))


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
            raise RunError(f"{folder} cannot be made: {error.strerror}. {DISK_HINT}") from error
        return folder
    raise AssertionError("count() has no end")


def _is_finished(recorder: Recorder) -> bool:
    return recorder.run.status.get("status") == "finished"


def _where_it_stands(recorder: Recorder, asked: dict[str, Any], resume: Resume) -> Path | None:
    """Return the checkpoint to go on from; None starts anew."""
    if recorder.known and resume == "never":
        raise RunError(
            f"{recorder.folder} holds a run already, and resume is 'never'. Choose another "
            "folder with --run (run= in Python)."
        )
    found = list_checkpoints(recorder.checkpoints)
    if recorder.known and (found or _is_finished(recorder)):
        recorder.check_same(asked)
    if resume == "must" and not (found and recorder.known):
        raise CheckpointError(
            f"{recorder.folder} has no checkpoint to go on from, and resume is 'must'."
        )
    return found[-1] if found and recorder.known else None


def _build(
    planned: Planned,
    recorder: Recorder,
    settings: ExitStack,
    callbacks: Sequence[Callback],
    *,
    fresh: bool,
) -> Session:
    plan, task, loss = planned.plan, planned.task, planned.loss
    check_model(planned.model)
    modes = [(module, module.training) for module in planned.model.modules()]
    model = planned.model.to(plan.device)
    if isinstance(loss.value, nn.Module):
        loss.value.to(plan.device)
    training = feed(task.train, "train", task=task, loss=loss, plan=plan, training=True)
    context = autocast(plan)
    if plan.activation_checkpointing == "on":
        settings.enter_context(own_checkpointing(model))
    check_first_batch(model, training, task, autocast=context, fresh=fresh)
    groups = arrange(model, plan)
    settings.enter_context(frozen(model, groups))
    optimizer = build_optimizer(plan, task, model, groups)
    state = State(model, {WHOLE: optimizer}, grad_scaler(plan))
    if plan.average.kind != "none":
        state.average = Average(plan.average, model, parameters_of(optimizer))
    peaks = [float(group["lr"]) for group in optimizer.param_groups]
    parts = Parts(
        state=state,
        loss=loss,
        parallel=Single(plan, state),
        modes=Modes(model, tuple(task.keep_eval)),
        buffers=Buffers(model),
        randomness=ModelRandomness(plan.seed, plan.device),
        autocast=context,
        rate=annealed(factor(plan.schedule), plan.average, peaks[0]),
        peak_rates=peaks,
    )
    for module, mode in modes:
        settings.callback(setattr, module, "training", mode)
    loop = Loop(parts, training, plan, callbacks=list(callbacks))
    loop.on_log.append(Watch(model))
    parts.freeze = freezing(model, plan, groups, parts.modes)
    return Session(plan, task, loop, feeds(planned), recorder, settings)


def feeds(planned: Planned) -> dict[str, Feed]:
    """Return the feed that measures each part of the data: "train", the validation sets, "test"."""
    task = planned.task
    parts = {"train": task.train, **task.val_sets()}
    if task.test is not None:
        parts["test"] = task.test
    return {
        part: feed(data, part, task=task, loss=planned.loss, plan=planned.plan)
        for part, data in parts.items()
    }
