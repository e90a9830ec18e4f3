"""Before a long run: a dry run of every act in it, and learning a few samples by heart."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from surestep.base.errors import CheckpointError, DataError, TaskError
from surestep.base.text import format_bytes
from surestep.config.config import Config
from surestep.engine.data.dataset import count_samples, first_samples
from surestep.engine.data.target_stats import with_fitted_loss
from surestep.engine.losses.model_loss import IN_TRAINING
from surestep.engine.rules.resolve import resolve_seed
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback, Request
from surestep.engine.task.task import Task
from surestep.engine.value import Value, number
from surestep.record.checkpoint.discovery import size_on_disk
from surestep.trainer.fit import fit
from surestep.trainer.prepare import prepare
from surestep.trainer.session import Session

NEAR_ZERO = 0.01  # of the first loss
PATIENCE_STEPS = 2000
_NOT_OF_A_FEW_SAMPLES = (
    *("micro_batch_size", "epochs", "data.shuffle_buffer", "exclude_samples"),
    *("limit_train_batches", "limit_val_batches"),
)
_NOT_BY_HEART: dict[str, Any] = {"sampler": None, "batch_transform": None, "schedule": None}


class DryRunStep(NamedTuple):
    """What was tried, what came of it, and how long it took."""

    what: str
    result: str
    seconds: float


class OverfitResult(NamedTuple):
    """How the loss on a few samples went."""

    samples: int
    first: float
    last: float
    steps: int
    has_converged: bool


def dry_run(task: Task, config: Config, *, callbacks: Sequence[Callback] = ()) -> list[DryRunStep]:
    """Take one step, evaluate one batch of each split, save, load; leave nothing behind."""
    acts: list[DryRunStep] = []
    size = config.validation.batch_size or config.micro_batch_size or config.batch_size or 64
    small = replace(
        task,
        val={name: first_samples(data, size, name) for name, data in task.val_sets().items()}
        or None,
        test=None if task.test is None else first_samples(task.test, size, "test"),
    )
    options = {"logging.progress": "quiet"}
    with _temporary() as folder:
        timed = _Timed(acts)
        session = timed(
            "start-up checks",
            lambda: prepare(
                small, config.replace_options(options), run=folder, callbacks=callbacks
            ),
            lambda _: "passed",
        )
        with session:
            session.incidents.keeps = False
            timed("one step", lambda: _one_step(session), lambda loss: f"loss {loss:.4g}")
            for split in [*small.val_sets(), *(["test"] if small.test is not None else [])]:
                timed(f"evaluate {split}", partial(session.evaluate, split), _shown)
            timed("save", session.save, _size)
            timed("load", lambda: _loads_back(session), lambda _: "bit for bit")
    return acts


def overfit(task: Task, config: Config, samples: int) -> OverfitResult:
    """Train on the same few samples, in eval mode measured, until the loss is near zero.

    The rate is held constant and nothing is decayed, since neither helps to learn by heart.

    Raises:
        DataError: there are not as many samples.
    """
    if task.loss == IN_TRAINING:
        raise TaskError(
            f"Task(loss={IN_TRAINING!r}) has no loss in eval mode, by which learning by heart is "
            "measured. Train on a few samples, and look at the loss of its steps."
        )
    few = first_samples(task.train, samples, "train")
    there = count_samples(few, "train")
    if there is not None and there < samples:
        raise DataError(f"There are {there} training samples, and {samples} are asked for.")
    task = with_fitted_loss(task, resolve_seed(config))  # a few samples may lack a class
    by_heart = replace(task, train=few, val=few, test=None, metrics={}, **_NOT_BY_HEART)
    length = config.batch_size or 64
    options: dict[str, Any] = {
        "batch_size": few.batch_size if isinstance(few, DataLoader) else min(length, samples),
        "max_steps": PATIENCE_STEPS,
        "validation.every": "20 steps",
        "validation.metric": "loss",
        "validation.mode": "min",
        "checkpoint.every": f"{PATIENCE_STEPS} steps",
        "checkpoint.keep_best": 0,
        "logging.progress": "quiet",
        "data.drop_last": False,
    }
    kept = {
        name: value
        for name, value in config.set_options().items()
        if not name.startswith(("schedule.", "early_stop.", "validation."))
        and name not in _NOT_OF_A_FEW_SAMPLES
    }
    if task.optimizer is None:
        options["optim.weight_decay"] = 0.0
    if isinstance(few, DataLoader):
        del options["data.drop_last"]
        kept = {name: value for name, value in kept.items() if not name.startswith("data.")}
    watch = _UntilNearZero()
    with _temporary() as folder:
        asked = Config.from_options({**kept, **options})
        with prepare(by_heart, asked, run=folder, callbacks=[watch]) as session:
            session.incidents.keeps = False
            watch.first = number(session.evaluate("val")["val/loss"])
            fit(session)
            steps = session.state.progress.step
    return OverfitResult(samples, watch.first, watch.last, steps, watch.reached)


class _UntilNearZero(Callback):
    """Ask to stop when the loss is near zero."""

    def __init__(self) -> None:
        self.first = self.last = math.nan

    @property
    def reached(self) -> bool:
        return self.last <= NEAR_ZERO * self.first

    def on_evaluate(self, state: State, metrics: Mapping[str, Value]) -> Request | None:
        """Compare with the first loss."""
        self.last = number(metrics["val/loss"])
        return Request.STOP if self.reached else None


class _Timed:
    """Do things one after another, and note what came of each."""

    def __init__(self, acts: list[DryRunStep]) -> None:
        self.acts = acts

    def __call__(self, what: str, act: Callable[[], Any], shown: Callable[[Any], str]) -> Any:
        start = time.perf_counter()
        result = act()
        self.acts.append(DryRunStep(what, shown(result), time.perf_counter() - start))
        return result


def _one_step(session: Session) -> float:
    result = next(session.steps())
    session.loop.log_point()
    return float(result.loss)


def _shown(metrics: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def _size(path: Path) -> str:
    return format_bytes(size_on_disk(path))


def _loads_back(session: Session) -> None:
    """Load what was saved over zeros, and compare; what a checkpoint leaves out stays.

    Raises:
        CheckpointError: another tensor came back.
    """
    before = {name: value.clone() for name, value in _tensors(session).items()}
    for value in _tensors(session).values():
        value.zero_()
    session.run.load_model(session.model, "last")
    changed = [n for n, value in _tensors(session).items() if not torch.equal(value, before[n])]
    if changed:
        raise CheckpointError(f"These tensors came back otherwise: {', '.join(changed)}.")


def _tensors(session: Session) -> dict[str, torch.Tensor]:
    state_dict = session.model.state_dict().items()
    base = session.state.base
    return {n: each for n, each in state_dict if isinstance(each, torch.Tensor) and n not in base}


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="surestep-") as folder:
        yield Path(folder) / "run"
