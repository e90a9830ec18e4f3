"""Law 9: an explicit wish is never replaced; what is not known is shown as not known.

Every option of the Config stands in `WISHES` with a value that is not its default, and what the
Plan must hold for it. An option that is missing there fails the test.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import surestep
from surestep.base.config import Config, options
from surestep.base.duration import Duration
from surestep.engine.plan import Plan
from surestep.trainer.planning import plan_task
from tests.laws.tasks import Augmented, mlp, rows, session_of, with_batchnorm

Folder = Callable[[], Path]
SAMPLES = 50


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def task_of(**parts: Any) -> surestep.Task:
    usual = {"train": rows(SAMPLES), "val": rows(20), "metrics": {"accuracy": accuracy}}
    return surestep.Task(loss=nn.CrossEntropyLoss(), **{"model": mlp(), **usual, **parts})


def blocks() -> nn.Module:
    """A model that has the same thing twice."""
    return nn.Sequential(nn.Linear(10, 4), nn.Sequential(mlp_of(4), mlp_of(4)), nn.Linear(4, 3))


def mlp_of(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


class Stream(IterableDataset):
    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return zip(*rows(SAMPLES), strict=True)


@dataclass(frozen=True)
class Wish:
    """A value that is said, where the Plan holds it, as what, and what must go with it."""

    said: Any
    at: str = ""
    planned: Any = None
    along: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)


ONLY_VALUE = ("device", "data.pin_memory", "cudnn_benchmark")  # no other is possible on a CPU
SKIP = {"on_nonfinite": "skip"}
SGD = {"optim.name": "sgd"}
COSINE = {"schedule.name": "cosine"}
FP16 = {"precision": "fp16"}
COMPILE = {"compile": "default"}
EMA = {"average.kind": "ema"}
SWA = {"average.kind": "swa"}
WORKERS = {"data.num_workers": 2}
WISHES: dict[str, Wish] = {
    "epochs": Wish(2.5, "total_steps", 10),
    "max_steps": Wish(7, "total_steps"),
    "batch_size": Wish(10),
    "micro_batch_size": Wish(3),
    "seed": Wish(12345),
    "deterministic": Wish(True),
    "device": Wish("cpu", planned=torch.device("cpu")),
    "precision": Wish("bf16"),
    "max_grad_norm": Wish(0.25),
    "clip_value": Wish(0.125),
    "on_nonfinite": Wish("skip"),
    "max_nonfinite": Wish(3, along=SKIP),
    "activation_checkpointing": Wish("every 2", parts={"model": blocks()}),
    "compile": Wish("default"),
    "compile_blocks": Wish(True, along=COMPILE, parts={"model": blocks()}),
    "channels_last": Wish(True, parts={"model": nn.Conv2d(1, 3, 1)}),
    "matmul_precision": Wish("high"),
    "cudnn_benchmark": Wish(False),
    "sdpa_backend": Wish("math"),
    "profile": Wish("1:2"),
    "optim.name": Wish("sgd"),
    "optim.lr": Wish(0.5),
    "optim.weight_decay": Wish(0.25),
    "optim.betas": Wish((0.5, 0.75)),
    "optim.eps": Wish(1e-3),
    "optim.momentum": Wish(0.5, along=SGD),
    "optim.nesterov": Wish(True, along={**SGD, "optim.momentum": 0.5}),
    "schedule.name": Wish("cosine", "schedule.name"),
    "schedule.warmup": Wish("3 steps", "schedule.warmup", 3),
    "schedule.min_lr_ratio": Wish(0.25, "schedule.min_lr_ratio", along=COSINE),
    "schedule.floor": Wish("cut", "schedule.floor", along=COSINE),
    "schedule.every": Wish("2 steps", "schedule.every", 2, along=COSINE),
    "scaler.init_scale": Wish(8.0, along=FP16),
    "scaler.growth_factor": Wish(3.0, along=FP16),
    "scaler.growth_interval": Wish(5, along=FP16),
    "scaler.backoff_factor": Wish(0.25, along=FP16),
    "data.num_workers": Wish(1),
    "data.pin_memory": Wish(False),
    "data.persistent_workers": Wish(False, along=WORKERS),
    "data.prefetch_factor": Wish(5, along=WORKERS),
    "data.drop_last": Wish(True),
    "data.shuffle": Wish(False),
    "data.shuffle_buffer": Wish(10, parts={"train": Stream()}),
    "validation.every": Wish("3 steps", planned=Duration(3, "steps")),
    "validation.batch_size": Wish(9),
    "validation.metric": Wish("accuracy", planned="val/accuracy"),
    "validation.mode": Wish("max"),
    "early_stop.patience": Wish(4),
    "early_stop.min_delta": Wish(0.5, along={"early_stop.patience": 4}),
    "average.kind": Wish("ema", "average.kind"),
    "average.decay": Wish(0.5, "average.decay", along=EMA),
    "average.warmup": Wish(False, "average.warmup", along=EMA),
    "average.start": Wish("50%", "average.start", 2, along=EMA),
    "average.every": Wish("2 steps", "average.every", 2, along=EMA),
    "average.buffers": Wish("copy", "average.buffers", along=EMA),
    "average.lr": Wish(0.5, "average.lr", along=SWA),
    "average.anneal": Wish("1 step", "average.anneal", 1, along={**SWA, "average.lr": 0.5}),
    "checkpoint.every": Wish("4 steps", planned=Duration(4, "steps")),
    "checkpoint.keep_last": Wish(5),
    "checkpoint.keep_best": Wish(6),
    "logging.every": Wish("5 steps", planned=Duration(5, "steps")),
    "logging.progress": Wish("quiet"),
}


def plan_of(said: dict[str, Any], **parts: Any) -> Plan:
    length = {} if {"epochs", "max_steps"} & said.keys() else {"epochs": 1}
    size = {} if "batch_size" in said or parts else {"batch_size": 16}
    return plan_task(task_of(**parts), Config.from_options({**length, **size, **said})).plan


def check_wish(option: str) -> None:
    """Say one option, and look it up in the Plan."""
    wish = WISHES[option]
    plan = plan_of({**wish.along, option: wish.said}, **wish.parts)
    at = wish.at or option.replace(".", "_")
    planned = wish.said if wish.planned is None else wish.planned
    assert reduce(getattr, at.split("."), plan) == planned
    without = reduce(getattr, at.split("."), plan_of(wish.along, **wish.parts))
    if option not in ONLY_VALUE:
        assert without != planned, "this is the default: the test would show nothing"
    if at == "total_steps":
        assert plan.reason("total_steps").startswith(("said: ", "2.5 epochs"))
    else:
        assert "said" in plan.reason(option)


@pytest.mark.parametrize("option", [name for name, _ in options()])
def test_said_value_is_the_planned_value(option):
    check_wish(option)


def test_every_option_is_a_wish():
    assert list(WISHES) == [name for name, _ in options()]


def test_every_option_has_a_reason():
    plan = plan_of({})
    assert all(each.reason for each in plan.decisions)


def test_optimizer_is_made_as_planned(folder):
    optim = {"lr": 0.5, "weight_decay": 0.25, "betas": (0.5, 0.75), "eps": 1e-3}
    with session_of(task_of(), folder(), epochs=1, optim=optim) as session:
        decayed, kept = session.optimizer.param_groups
    assert {name: decayed[name] for name in optim} == optim
    assert {name: kept[name] for name in optim} == {**optim, "weight_decay": 0.0}


def test_settings_of_the_process_hold_while_the_session_is_open(folder):
    with session_of(task_of(), folder(), epochs=1, deterministic=True):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_data_is_read_as_planned(folder):
    data = {"shuffle": False, "drop_last": True}
    seen = []
    model = mlp()
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    task = surestep.Task(model, nn.CrossEntropyLoss(), rows(SAMPLES))
    with session_of(task, folder(), epochs=1, batch_size=8, micro_batch_size=5, data=data) as s:
        seen.clear()
        list(s.steps())
    assert torch.equal(torch.cat(seen), rows(SAMPLES)[0][:48])
    assert [len(each) for each in seen] == [5, 3] * 6


def test_elements_of_the_gradient_are_clipped_as_planned(folder):
    with session_of(task_of(), folder(), epochs=1, clip_value=1e-3) as session:
        next(session.steps())
        grads = [each.grad.abs().max() for each in session.model.parameters()]
    assert max(grads) == pytest.approx(1e-3)


def test_validation_loader_evaluates_what_its_own_sampler_draws_or_is_refused():
    drawn = DataLoader(TensorDataset(*rows(20)), 5, sampler=SubsetRandomSampler(range(5)))
    with pytest.raises(surestep.SurestepError, match="sampler"):
        plan_of({}, val=drawn)


def unknown(folder: Folder) -> tuple[Any, list[dict[str, Any]]]:
    """Train over a batch without items; return its result and the events."""
    x, y = rows(24)
    y[8:16] = -100
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), (x, y), val=(x, torch.full_like(y, -100)))
    with session_of(
        task, folder(), epochs=1, batch_size=8, data={"shuffle": False}, logging={"every": "1 step"}
    ) as session:
        results = list(session.steps())
        metrics = session.evaluate()
    assert math.isnan(metrics["val/loss"])
    return results[1], list(session.run.events())


def check_unknown(folder: Folder) -> None:
    """Find no zero where nothing is known."""
    result, events = unknown(folder)
    assert math.isnan(result.loss)
    assert math.isnan(result.grad_norm)
    assert not result.took_step
    steps = [each for each in events if each["event"] == "steps"]
    assert [(each["loss"], each["grad_norm"]) for each in steps][1] == ([None], [None])
    assert all(steps[i]["loss"][0] > 0 for i in (0, 2))
    (evaluation,) = [each for each in events if each["event"] == "evaluation"]
    assert evaluation["metrics"]["val/loss"] == "nan"


def test_number_that_is_not_known_is_never_zero(folder):
    check_unknown(folder)


def test_progress_says_not_known(folder, capsys):
    x, y = rows(16)
    y[8:] = -100
    task = surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), (x, y))
    with session_of(
        task,
        folder(),
        epochs=1,
        batch_size=8,
        data={"shuffle": False},
        logging={"every": "1 step", "progress": "plain"},
    ) as session:
        list(session.steps())
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "loss not known" in last
    assert "grad_norm not known" in last


def test_workers_of_the_plan_are_those_of_the_loader(folder):
    data = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": False}
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), Augmented())
    with session_of(task, folder(), epochs=1, data=data) as session:
        loader = session._gauge.feeds["train"].source._loader
    assert {name: getattr(loader, name) for name in data} == data
