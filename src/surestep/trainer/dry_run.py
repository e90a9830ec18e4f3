"""Checks before a long run: a dry run of each of its actions, and overfitting a few samples."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from surestep.base.errors import CheckpointError, DataError, NoTargetsError, TaskError
from surestep.base.temp_folders import make_temp_folder
from surestep.base.text import format_bytes
from surestep.config.config import Config
from surestep.engine.data.dataset import count_samples, first_samples
from surestep.engine.data.target_stats import with_fitted_loss
from surestep.engine.evaluate.predict import Predictions
from surestep.engine.losses.model_loss import IN_TRAINING
from surestep.engine.resolve.optim import without_find
from surestep.engine.resolve.resolver import resolve_seed
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, Request
from surestep.engine.task.task import Task
from surestep.engine.value import Metrics, shown
from surestep.record.checkpoint.discovery import size_on_disk
from surestep.trainer.fit import fit
from surestep.trainer.prepare import prepare
from surestep.trainer.session import Session

NEAR_ZERO = 0.01  # of the first loss
MAX_STEPS = 2000
_IGNORED_GROUPS = ("schedule.", "early_stop.", "validation.")
_IGNORED_OPTIONS = (
    "checkpoint.mirror",
    *("micro_batch_size", "epochs", "data.shuffle_buffer", "exclude_samples"),
    *("limit_train_batches", "limit_val_batches"),
)


class DryRunStep(NamedTuple):
    """An action, its result, and how long it took."""

    what: str
    result: str
    seconds: float


class OverfitResult(NamedTuple):
    """The loss on a few samples, before and after training on them."""

    samples: int
    first: float
    last: float
    steps: int
    has_converged: bool


def dry_run(task: Task, config: Config, *, callbacks: Sequence[Callback] = ()) -> list[DryRunStep]:
    """Take one step, evaluate one batch of each split, save and load, in a temporary folder."""
    actions: list[DryRunStep] = []

    def timed(what: str, act: Callable[[], Any], describe: Callable[[Any], str]) -> Any:
        start = time.perf_counter()
        result = act()
        actions.append(DryRunStep(what, describe(result), time.perf_counter() - start))
        return result

    wanted = config.validation.batch_size, config.micro_batch_size, config.batch_size
    size = next((size for size in wanted if isinstance(size, int)), 64)
    val_sets = {name: first_samples(data, size, name) for name, data in task.val_sets().items()}
    test = None if task.test is None else first_samples(task.test, size, "test")
    small = replace(task, val=val_sets or None, test=test)
    quiet = config.replace_options({"logging.progress": "quiet", "checkpoint.mirror": None})
    quiet = without_find(quiet)
    with make_temp_folder() as folder:
        start = partial(prepare, small, quiet, run=folder / "run", callbacks=callbacks)
        session = timed("start-up checks", start, lambda _: "passed")
        with session:
            session.incidents.keeps = False
            timed("one step", partial(_one_step, session), lambda loss: f"loss {loss:.4g}")
            for split in small.val_sets():
                timed(f"evaluate {split}", partial(session.evaluate, split), shown)
            if test is not None:
                try:
                    timed("evaluate test", partial(session.evaluate, "test"), shown)
                except NoTargetsError:
                    timed("predict test", partial(session.predict, "test"), _count_samples)
            timed("save", session.save, lambda path: format_bytes(size_on_disk(path)))
            timed("load", partial(_check_load, session), lambda _: "bit for bit")
    return actions


def _count_samples(found: Predictions) -> str:
    return f"{found.samples} samples"


def _one_step(session: Session) -> float:
    result = next(session.loop.steps())
    session.loop.log.take()
    return float(result.loss)


def _check_load(session: Session) -> None:
    """Load the saved weights over zeros; raise a CheckpointError if a tensor has other values."""
    base = session.state.base  # frozen weights that a checkpoint leaves out
    tensors: dict[str, Tensor] = {
        name: value
        for name, value in session.model.state_dict().items()
        if isinstance(value, Tensor) and name not in base
    }
    before = {name: value.clone() for name, value in tensors.items()}
    for value in tensors.values():
        value.zero_()
    session.run.choose("last").load_state(session.state, session.loop.context.train_modes)
    loaded = session.model.state_dict()
    changed = [name for name in before if not torch.equal(loaded[name], before[name])]
    if changed:
        raise CheckpointError(f"These tensors have other values: {', '.join(changed)}.")


def overfit(task: Task, config: Config, samples: int) -> OverfitResult:
    """Train on the same few samples until their loss, evaluated in eval mode, is near zero.

    The learning rate is constant and there is no weight decay, since neither helps here.
    """
    if task.loss == IN_TRAINING:
        raise TaskError(
            f"Task(loss={IN_TRAINING!r}) has no loss in eval mode, which overfitting is checked "
            "with. Train on a few samples, and check the loss of its steps."
        )
    few = first_samples(task.train, samples, "train")
    count = count_samples(few, "train")
    if count is not None and count < samples:
        raise DataError(f"There are {count} training samples, and {samples} are requested.")
    task = with_fitted_loss(task, resolve_seed(config))  # a few samples may lack a class
    unshaped: dict[str, Any] = {"sampler": None, "batch_transform": None, "schedule": None}
    small = replace(task, train=few, val=few, test=None, metrics={}, **unshaped)
    options = {
        name: value
        for name, value in without_find(config).set_options().items()
        if not name.startswith(_IGNORED_GROUPS) and name not in _IGNORED_OPTIONS
    }
    options |= {
        "max_steps": MAX_STEPS,
        "validation.every": "20 steps",
        "validation.metric": "loss",
        "validation.mode": "min",
        "checkpoint.every": f"{MAX_STEPS} steps",
        "checkpoint.keep_best": 0,
        "logging.progress": "quiet",
    }
    if isinstance(few, DataLoader):
        options = {name: v for name, v in options.items() if not name.startswith("data.")}
        options["batch_size"] = few.batch_size
    else:
        options["data.drop_last"] = False
        options["batch_size"] = min(config.batch_size or 64, samples)
    if task.optimizer is None:
        options["optim.weight_decay"] = 0.0
    watch = _StopNearZero()
    with make_temp_folder() as folder:
        run = folder / "run"
        with prepare(small, Config.from_options(options), run=run, callbacks=[watch]) as session:
            session.incidents.keeps = False
            watch.first = session.evaluate("val")["val/loss"]
            fit(session)
            steps = session.state.progress.step
    return OverfitResult(samples, watch.first, watch.last, steps, watch.is_near_zero)


class _StopNearZero(Callback):
    """Stops the run when the loss is near zero."""

    def __init__(self) -> None:
        self.first = self.last = math.nan

    @property
    def is_near_zero(self) -> bool:
        return self.last <= NEAR_ZERO * self.first

    def on_evaluate(self, state: State, metrics: Metrics) -> Request | None:
        """Compare with the first loss."""
        self.last = metrics["val/loss"]
        return Request.STOP if self.is_near_zero else None
