"""Law 9: a wish that cannot be kept is an error that says what to type instead."""

from contextlib import suppress
from itertools import starmap
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import surestep
from surestep.base.config import Config
from surestep.base.errors import ConfigError
from surestep.engine.plan import Known, Refusal
from surestep.engine.table import REFUSALS
from surestep.trainer.planning import plan_task
from tests.laws.tasks import mlp, rows


def task_of(**parts: Any) -> surestep.Task:
    return surestep.Task(mlp(), nn.CrossEntropyLoss(), **{"train": rows(50), **parts})


def loader(**options: Any) -> DataLoader:
    return DataLoader(TensorDataset(*rows(50)), **{"batch_size": 10, **options})


def odd(outputs, targets):
    return outputs.mean()


VAL = {"val": rows(20)}
OWN = {"optimizer": lambda groups: torch.optim.RMSprop(groups, lr=1e-3)}
LOADER = {"train": loader()}
SGD = {"optim.name": "sgd"}
SWA = {"average.kind": "swa"}
AVERAGE = {
    **{"decay": 0.9, "warmup": True, "start": "1 step", "every": "1 step"},
    **{"buffers": "copy", "lr": 0.1},
}
# What is said, what the Task brings, and the words to type that the message must hold.
CANNOT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"device": "cuda:99"}, {}, "This machine has: cpu"),
    ({"device": "gpu"}, {}, "This machine has: cpu"),
    ({"device": "meta"}, {}, "This machine has: cpu"),
    ({"precision": "tf32", "device": "cpu"}, {}, "precision='fp32'"),
    ({"batch_size": 16}, LOADER, "leave batch_size out"),
    ({"data.shuffle": True}, LOADER, "leave data.shuffle out"),
    ({"data.shuffle": True}, {"order": surestep.orders.sequential()}, "Leave data.shuffle out"),
    ({"data.drop_last": True}, LOADER, "leave data.drop_last out"),
    ({"data.num_workers": 2}, LOADER, "leave data.num_workers out"),
    ({"data.pin_memory": True}, LOADER, "leave data.pin_memory out"),
    ({"data.pin_memory": True}, {}, "Leave it out"),
    ({"data.persistent_workers": True}, LOADER, "leave data.persistent_workers out"),
    ({"data.prefetch_factor": 4}, {"train": loader(num_workers=1)}, "leave data.prefetch_factor"),
    ({"validation.batch_size": 4}, {"val": loader()}, "Say it in one place"),
    ({"batch_size": 8, "micro_batch_size": 9}, {}, "at most 8"),
    ({"data.persistent_workers": True}, {}, "data.num_workers=2"),
    ({"data.prefetch_factor": 2}, {}, "data.num_workers=2"),
    ({"batch_size": 64, "data.drop_last": True}, {}, "drop_last=False"),
    ({"epochs": None}, {}, "epochs=10 or max_steps=1000"),
    ({"optim.lr": 0.1}, OWN, "leave Task(optimizer=...) out"),
    ({"optim.name": "sgd"}, OWN, "leave Task(optimizer=...) out"),
    ({"optim.betas": (0.5, 0.5), **SGD}, {}, "optim.name='adamw'"),
    ({"optim.eps": 1e-3, **SGD}, {}, "optim.name='adamw'"),
    ({"optim.momentum": 0.9}, {}, "optim.name='sgd'"),
    ({"optim.nesterov": True}, {}, "optim.name='sgd'"),
    ({"optim.nesterov": True, **SGD}, {}, "optim.momentum=0.9"),
    ({"max_grad_norm": 1.0, "clip_value": 1.0}, {}, "Say one of them"),
    ({"schedule.warmup": "50 steps"}, {}, "a shorter warm-up or a longer run"),
    ({"schedule.warmup": "2 epochs"}, {}, "a shorter warm-up or a longer run"),
    ({"schedule.min_lr_ratio": 0.1}, {}, "schedule.name='cosine'"),
    ({"schedule.floor": "cut"}, {}, "schedule.name='cosine'"),
    ({"max_nonfinite": 3}, {}, "on_nonfinite='skip'"),
    ({"scaler.init_scale": 8.0}, {}, "precision='fp16'"),
    ({"scaler.growth_interval": 8, "precision": "bf16"}, {}, "precision='fp16'"),
    ({"validation.metric": "accuracy"}, VAL, "Measured: val/loss"),
    ({"validation.metric": "loss"}, {}, "no val data"),
    (
        {"validation.metric": "odd"},
        {**VAL, "metrics": {"odd": odd}},
        "validation.mode='max' or 'min'",
    ),
    ({"validation.every": "1 epoch"}, {}, "give the Task val data"),
    ({"validation.batch_size": 4}, {}, "give the Task val data"),
    ({"validation.mode": "max"}, {}, "give the Task val data"),
    ({"early_stop.patience": 3}, {}, "give the Task val data"),
    ({"early_stop.min_delta": 0.1}, VAL, "early_stop.patience=5"),
    ({"compile_blocks": True}, {}, "say compile='default'"),
    ({"profile": "3:99"}, {}, "Use earlier steps"),
    ({"compile_blocks": True, "compile": "default"}, {}, "Leave it out"),
    ({"channels_last": True}, {}, "Leave it out"),
    ({"cudnn_benchmark": True, "deterministic": True}, {}, "Say one of them"),
    ({"cudnn_benchmark": True}, {}, "Leave it out"),
    ({"sdpa_backend": "cudnn"}, {}, "flash, math"),
    *(({f"average.{name}": value}, {}, "average.kind='ema'") for name, value in AVERAGE.items()),
    *(({**SWA, f"average.{name}": AVERAGE[name]}, {}, "='ema'") for name in ("decay", "warmup")),
    ({"average.lr": 0.1, "average.kind": "ema"}, {}, "average.kind='swa'"),
    ({"average.anneal": "5%", **SWA}, {}, "Say average.lr too"),
    ({"average.start": "2 epochs", **SWA}, {}, "an earlier start"),
    ({"average.buffers": "recompute", **SWA}, {}, "Leave it out"),
]


def plan(said: dict[str, Any], parts: dict[str, Any]) -> None:
    plan_task(task_of(**parts), Config.from_options({"epochs": 1, **said}))


def check_refusal(said: dict[str, Any], parts: dict[str, Any], words: str) -> None:
    """Ask for what cannot be; the error names what was said and holds what to type."""
    with pytest.raises(ConfigError) as caught:
        plan(said, parts)
    message = str(caught.value)
    assert words in message
    assert any(name in message or str(value) in message for name, value in said.items())


@pytest.mark.parametrize(
    ("said", "parts", "words"), CANNOT, ids=[" ".join(said) for said, _, _ in CANNOT]
)
def test_wish_that_cannot_be_kept_is_refused_with_what_to_type(said, parts, words):
    check_refusal(said, parts, words)


def test_every_refusal_of_the_table_is_tried(monkeypatch):
    """A new refusal without a case here fails."""
    held: set[str] = set()

    def watched(name: str, refusal: Refusal) -> Refusal:
        def when(k: Known) -> bool:
            holds = refusal.when(k)
            if holds:
                held.add(name)
            return holds

        return refusal._replace(when=when)

    names = set()
    for option, refusals in REFUSALS.items():
        named = [(f"{option}, no. {i + 1}", each) for i, each in enumerate(refusals)]
        names |= {name for name, _ in named}
        monkeypatch.setitem(REFUSALS, option, tuple(starmap(watched, named)))
    for said, parts, _ in CANNOT:
        with suppress(ConfigError):
            plan(said, parts)
    assert names - held == set()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"lr": 0.1}, "'optim.lr'"),
        ({"optim": {"learning_rate": 0.1}}, "optim.learning_rate"),
        ({"batch_sise": 3}, "'batch_size'"),
        ({"epochs": 1, "max_steps": 2}, "Say one of them"),
        ({"epochs": 0}, "epochs=0"),
        ({"precision": "fp8"}, "'bf16'"),
        ({"validation": {"every": "10 minutes"}}, "epochs, steps, items"),
        ({"checkpoint": {"every": "often"}}, "'2 epochs'"),
        ({"schedule": {"warmup": "120%"}}, "between 0% and 100%"),
        ({"optim": {"betas": (0.9, 1.0)}}, "optim.betas"),
    ],
)
def test_word_that_is_not_known_is_refused_with_those_that_are(said, words):
    with pytest.raises(ConfigError) as caught:
        Config(**said)
    assert words in str(caught.value)
