"""Kinds of training, each run in one process and on several ranks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import surestep
from surestep import batch_transforms
from surestep.base.errors import SurestepError
from surestep.engine.distributed import communicator as world
from surestep.trainer.fit import fit
from surestep.trainer.session import Session
from tests.laws.support import manual_step_tasks, spike_task
from tests.multi_rank import counting
from tests.multi_rank.cases import data, half, net, net64, opened, result, task, trained
from tests.parts import see_log_points

Found = dict[str, Any]


class Rows(IterableDataset[Any]):
    """A stream without a length, with random noise."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __iter__(self) -> Iterator[Any]:
        for x, y in zip(self.x, self.y, strict=True):
            yield x + 0.1 * torch.randn(6), y


class Going(Rows):
    """A stream with `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.x):
            self.at += 1
            yield self.x[self.at - 1] + 0.1 * torch.randn(6), self.y[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Split(Rows):
    """A stream that splits itself over the ranks."""

    def __iter__(self) -> Iterator[Any]:
        dist = torch.distributed
        first, step = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        yield from zip(self.x[first::step], self.y[first::step], strict=True)


def streaming(stream: Any, **parts: Any) -> surestep.Task:
    return surestep.Task(net, nn.CrossEntropyLoss(), train=stream, val=Rows(), **parts)


def jitter(inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix each sample with the previous one, which another rank may have, and add noise."""
    noise = torch.randn(inputs.shape, generator=generator)
    return inputs + 0.3 * inputs.roll(1, 0) + 0.1 * noise, targets


MIXUP = batch_transforms.mixup(0.4, classes=3)


def half_of_a_stream(folder: Path) -> Found:
    """Stop a run over a stream with a state within an epoch."""
    with opened(folder, streaming(Going())) as session:
        for each in session.steps():
            if each.step == 8:
                session.save()
                break
    return result(session)


def resume_stream(folder: Path) -> Found:
    """Resume a run over a stream, or train it at once if it was not started."""
    return trained(folder, streaming(Going()))


def halved_stream(folder: Path) -> Found:
    half_of_a_stream(folder)
    return resume_stream(folder)


def told(session: Session) -> list[Found]:
    """Return the events of the steps, without durations and memory."""
    steps = [each for each in session.run.events() if each["event"] == "steps"]
    timed = ("event", "time", "seconds", "data_wait_s", "peak_memory")
    return [{name: each[name] for name in each if name not in timed} for each in steps]


def turned(make: Callable[..., surestep.Task], samples: Tensor) -> Callable[[Path], Found]:
    """Take 20 manual steps; the last batch of an epoch has one sample."""

    def run(folder: Path) -> Found:
        options = {
            "batch_size": manual_step_tasks.BATCH,
            "micro_batch_size": 3,
            "logging": {"every": "1 step"},
        }
        session = opened(folder, make(train=(samples,)), **{"optim": {}, **options})
        with session:
            losses = [float(each.loss) for each in session.steps()]
        return {**result(session), "losses": losses, "metrics": {}, "told": told(session)}

    return run


SPIKE, SPIKE_STEPS = range(44, 49), 60  # seen at the log point of step 50; back to step 40


def rolled_back(folder: Path) -> Found:
    """Train over a loss spike, with a rollback."""
    options = {
        **{"max_steps": SPIKE_STEPS, "batch_size": spike_task.BATCH, "on_spike": "rollback"},
        **{"optim": {"lr": spike_task.LR, "weight_decay": spike_task.DECAY}},
        **{"checkpoint": {"every": "20 steps"}, "logging": {"every": "25 steps"}},
    }
    seen: list[float] = []
    with opened(folder, spike_task.task_of(SPIKE), **options) as session:
        see_log_points(session, lambda point: seen.extend(each or 0.0 for each in point.loss))
        fit(session)
    saved = [event["step"] for event in session.run.events() if event["event"] == "checkpoint"]
    return {
        **result(session),
        "losses": seen,
        "metrics": {},
        "back": session.state.spikes.rollbacks,
        "saved": saved,
    }


@contextmanager
def clock_of(rank: int) -> Iterator[None]:
    """Give each rank a clock of a different speed, which advances at each read."""
    now = iter(range(10**6))
    kept = world.time
    world.time = SimpleNamespace(monotonic=lambda: (1 + rank) * next(now))
    try:
        yield
    finally:
        world.time = kept


def by_the_clock(folder: Path) -> Found:
    """Log every 3 seconds and save every 7, with different clocks on the ranks."""
    rank, logged = int(os.environ.get("RANK", "0")), []  # type: int, list[int]
    every = {"logging": {"every": "0.05 minutes"}, "checkpoint": {"every": "0.12 minutes"}}
    with clock_of(rank), opened(folder, task(), **every) as session:
        see_log_points(session, lambda point: logged.append(point.progress.step))
        fit(session)
    return {**result(session), "logged": logged}


def logging_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    surestep.log("largest", outputs.detach().amax(1).mean())
    return nn.functional.cross_entropy(outputs, targets)


def two_of_each(batch: tuple[Tensor, Tensor]) -> int:
    return 2 * len(batch[1])


def branched(folder: Path) -> Found:
    """Fork a run that already has a best checkpoint."""
    options = {"validation": {"every": "2 steps", "metric": "loss", "mode": "max"}}
    with opened(folder / "parent", task(), max_steps=8, **options) as session:
        fit(session)
        assert session.state.best.best_step != 8
    source = f"{folder / 'parent'}@last"
    with opened(folder / "branch", task(), from_=source, **options) as session:
        begun = session.state.best.best_step
        fit(session)
    return {**result(session), "losses": [], "metrics": {}, "begun": begun}


def logs(folder: Path) -> Found:
    """Log a value per sample in the loss, which is a mean over two items per sample."""
    made = surestep.Task(net, logging_loss, train=data(), items=two_of_each)
    options = {"logging": {"every": "3 steps"}, "micro_batch_size": 3}
    with opened(folder, made, **options) as session:
        losses = [float(each.loss) for each in session.steps()]
    return {**result(session), "losses": losses, "metrics": {}, "told": told(session)}


def metrics() -> dict[str, Any]:
    """Return metric objects: sums, tables, lists of all scores, and custom statistics."""
    return {
        "f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro"),
        "auroc": torchmetrics.AUROC("multiclass", num_classes=3),
        "table": torchmetrics.ConfusionMatrix("multiclass", num_classes=3),
        "error": torchmetrics.CalibrationError("multiclass", num_classes=3),
        "spread": Spread(),
    }


class Spread(torchmetrics.Metric):
    """The standard deviation of the largest output, with a list state of torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", [], dist_reduce_fx="cat")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.seen.append(outputs)

    def compute(self) -> Tensor:
        return torchmetrics.utilities.dim_zero_cat(self.seen).amax(1).std()


class Averaged(torchmetrics.Metric):
    """A mean of means, which several ranks would weight incorrectly."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("mean", torch.zeros(()), dist_reduce_fx="mean")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.mean = outputs.mean()

    def compute(self) -> Tensor:
        return self.mean


class Own:
    """A custom metric that ignores ranks."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        return 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None: ...
    def compute(self) -> float:
        return 0.0

    def reset(self) -> None: ...


def measured(folder: Path) -> Found:
    """Evaluate and predict on 103 samples and on 3, which leave one rank of four without any."""
    few = data(samples=3)[0], torch.arange(3)  # one per class, because AUROC warns otherwise
    sets = {"many": data(samples=103), "few": few}
    made = surestep.Task(net, nn.CrossEntropyLoss(), train=data(), val=sets, metrics=metrics())
    with opened(folder, made, max_steps=3, validation={"batch_size": 10}) as session:
        losses = [float(each.loss) for each in session.steps()]
        found = session.evaluate()
        tables = {name: torch.tensor(found.tables[f"{name}/table"]) for name in sets}
        rows = {name: session.predict(name) for name in sets}
    return {
        **{**result(session), "losses": losses, "metrics": dict(found), "tables": tables},
        "predicted": {name: torch.tensor(each["output"]) for name, each in rows.items()},
    }


def normed(folder: Path) -> Found:
    """Train with BatchNorm, with statistics per rank, and evaluate."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))

    with opened(folder, task(model=model, train=data(samples=100)), max_steps=4) as session:
        for _ in session.steps():
            pass
        found, rows = session.evaluate(), session.predict("val")
        session.save()
    return {**result(session), "metrics": found, "predicted": torch.tensor(rows["output"])}


def refused(run: Callable[[], object]) -> str:
    try:
        run()
    except SurestepError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def with_metric(folder: Path, metric: Any) -> Found:
    made = surestep.Task(
        net, nn.CrossEntropyLoss(), train=data(), val=data(), metrics={"own": metric}
    )
    return trained(folder, made)


def step_by_rank(turn: surestep.ManualStep) -> None:
    """Step a different optimizer on each rank."""
    name = ("critic", "generator")[torch.distributed.get_rank() % 2]
    for micro in turn.micro_batches(name):
        turn.backward(
            turn.models["critic"](turn.models["generator"](micro.args[0][:, :3])).mean(), micro
        )
    turn.step(name)


LBFGS = {"name": "lbfgs", "lr": 0.5, "max_iter": 4}
DOUBLE = data(dtype=torch.float64)
KINDS: dict[str, Callable[[Path], Found]] = {
    "lbfgs": lambda folder: trained(
        # With a seed whose weights stay small: rounding grows with them.
        folder,
        task(DOUBLE, net64),
        optim=LBFGS,
        micro_batch_size=4,
        max_steps=6,
        seed=2,
    ),
    "stream": lambda folder: trained(folder, streaming(Rows()), micro_batch_size=3),
    "buffered stream": lambda folder: trained(
        folder, streaming(Rows()), data={"shuffle_buffer": 30}
    ),
    "own state": resume_stream,
    "own state, gone on": halved_stream,
    "mixup": lambda folder: trained(folder, task(batch_transform=MIXUP)),
    "mixup of micro-batches": lambda folder: trained(
        folder, task(batch_transform=MIXUP), micro_batch_size=3
    ),
    "own transform": lambda folder: trained(
        folder, task(batch_transform=jitter), micro_batch_size=7
    ),
    "WGAN-GP": turned(manual_step_tasks.wgan_task, manual_step_tasks.real_samples(49)),
    "actor-critic": turned(manual_step_tasks.actor_critic_task, manual_step_tasks.starts(49)),
    "rollback": rolled_back,
    "branch": branched,
    "logs": logs,
    "measured": measured,
    "counters": counting.counted,
}
OF_RANKS = {
    **{"batch norm": normed, "clock": by_the_clock, "half of a stream": half_of_a_stream},
    "half of counters": lambda folder: half(folder, counting.counting),
    "differing counters": counting.differing,
}
REFUSED: dict[str, Callable[[Path], str]] = {
    "mean of means": lambda folder: refused(lambda: with_metric(folder, Averaged())),
    "own metric": lambda folder: refused(lambda: with_metric(folder, Own())),
    "split stream": lambda folder: refused(lambda: trained(folder, streaming(Split()))),
    "another step": lambda folder: refused(
        lambda: turned(
            lambda **parts: manual_step_tasks.wgan_task(step_by_rank, **parts), torch.ones(49, 4)
        )(folder)
    ),
}
