"""Law 3: an ejected script trains the weights of its run, bit for bit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.laws.support.ejected import (
    Case,
    compare,
    compare_ranks,
    loaded,
    padded,
    regression,
    small,
    taught,
)
from tests.read_modules import forget_modules

GRID = {
    "default": small(),
    "leftover": small(micro_batch_size=6),
    "leftover_dropped": small(micro_batch_size=6, data__drop_last=True),
    "in_order": small(data__shuffle=False, limit_train_batches=3),
    "seed": small(seed=7, model="lambda: network()"),
    "clip_norm": small(max_grad_norm=0.01),
    "no_clip": small(max_grad_norm="off"),
    "clip_value": small(clip_value=0.001),
    "sgd": small(optim__name="sgd", optim__lr=0.1, optim__momentum=0.9, optim__nesterov=True),
    "adam": small(optim__name="adam", optim__betas=(0.8, 0.9), optim__weight_decay=0.1),
    "rmsprop": small(optim__name="rmsprop", optim__lr=0.01),
    "adagrad": small(optim__name="adagrad", optim__lr=0.01),
    "for_loop": small(optim__implementation="for_loop"),
    "foreach": small(optim__implementation="foreach"),
    "no_decay": small(optim__weight_decay=0.0),
    "groups": small(optim__groups=("0.* lr=1e-2 decay=0.5", "2.* lr=0.5x")),
    "layerwise": small(optim__layerwise_lr_decay=0.5, schedule__name="cosine"),
    "frozen": small(optim__groups=("0 freeze",)),
    "frozen_silent": small(
        model="lambda: nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.Linear(16, 3))",
        optim__groups=("0 freeze",),
        logging__every="off",
    ),
    "unfrozen": small(optim__groups=("0 freeze='2 steps'", "1 freeze='5 steps' lr=0.1x")),
    "cosine": small(schedule__name="cosine", schedule__warmup="3 steps"),
    "by_epoch": small(schedule__name="cosine", schedule__interval="1 epoch"),
    "one_cycle": small(schedule__name="one_cycle"),
    "cyclic": small(
        schedule__name="cyclic",
        schedule__step_size_up="3 steps",
        schedule__cycle_momentum=True,
        optim__name="sgd",
        optim__lr=0.1,
        optim__momentum=0.9,
    ),
    "linear": small(schedule__name="linear", schedule__warmup="10%"),
    "polynomial": small(schedule__name="polynomial", schedule__power=2.0),
    "exponential": small(schedule__name="exponential", schedule__gamma=0.8),
    "inverse_sqrt": small(schedule__name="inverse_sqrt", schedule__warmup="3 steps"),
    "step": small(schedule__name="step", schedule__step_size="3 steps", schedule__gamma=0.5),
    "multi_step": small(schedule__name="multi_step", schedule__milestones=("3 steps", "2 epochs")),
    "cosine_restarts": small(
        schedule__name="cosine_restarts", schedule__T_0="3 steps", schedule__T_mult=2
    ),
    "warmup_stable_decay": small(
        schedule__name="warmup_stable_decay", schedule__warmup="2 steps", schedule__min_lr_ratio=0.1
    ),
    "min_delta": small(early_stop__patience=1, early_stop__min_delta=0.5),
    "early_stop": small(
        shows=lambda progress: progress["step"] < 60,
        max_steps=60,
        early_stop__patience=2,
        optim__lr=0.3,
        validation__every="2 steps",
    ),
    "late_stop": small(
        shows=lambda progress: 10 < progress["step"] < 60,
        max_steps=60,
        early_stop__patience=2,
        early_stop__start="10 steps",
        optim__lr=0.3,
        validation__every="2 steps",
    ),
    "plateau": small(
        shows=lambda progress: progress["scale"] < 1,
        max_steps=40,
        optim__lr=0.05,
        schedule__name="reduce_on_plateau",
        schedule__patience=0,
        schedule__cooldown=1,
        validation__every="2 steps",
        validation__metric="accuracy",
    ),
    "plateau_absolute": small(
        shows=lambda progress: progress["scale"] < 1,
        max_steps=40,
        schedule__name="reduce_on_plateau",
        schedule__warmup="5 steps",
        schedule__patience=1,
        schedule__threshold=0.1,
        schedule__threshold_mode="abs",
        validation__every="2 steps",
    ),
    "ema": small(average__kind="ema", average__decay=0.9, validation__every="3 steps"),
    "ema_copy": small(
        average__kind="ema",
        average__decay=0.9,
        average__warmup=False,
        average__buffers="copy",
        average__start="4 steps",
        average__every="2 steps",
        validation__every="1 step",
    ),
    "swa": small(
        max_steps=16, average__kind="swa", average__start="2 epochs", average__buffers="average"
    ),
    "swa_recomputed": small(
        max_steps=17, average__kind="swa", average__start="1 epoch", micro_batch_size=6
    ),
    "bf16": small(precision="bf16"),
    "fp16": small(precision="fp16"),
    "fp16_overflow": small(
        shows=lambda progress: progress["skipped"] > 3,
        precision="fp16",
        scaler__init_scale=2.0**40,
        max_steps=60,
        schedule__name="cosine",
        schedule__warmup="3 steps",
    ),
    "fp16_grows": small(
        precision="fp16", scaler__growth_interval=2, scaler__growth_factor=3.0, max_grad_norm="off"
    ),
    "label_smoothing": small("nn.CrossEntropyLoss(label_smoothing=0.1)"),
    "class_weights": small("surestep.losses.multiclass(weight='balanced')", micro_batch_size=6),
    "torch_weights": small(
        "nn.CrossEntropyLoss(weight=torch.tensor([0.3, 1.7, 0.9]))", precision="bf16"
    ),
    "own_loss": small("functional_mean", micro_batch_size=6),
    "other_generators": small(model="Noisy()", stop=5, checkpoint__every="2 steps"),
    "resumed": small(stop=7, max_steps=20, schedule__name="cosine", checkpoint__every="3 steps"),
    "resumed_average": small(
        stop=7, max_steps=20, average__kind="ema", average__decay=0.9, checkpoint__every="3 steps"
    ),
    "resumed_fp16": small(
        stop=7, precision="fp16", scaler__init_scale=2.0**20, checkpoint__every="3 steps"
    ),
}
GRID |= {
    name: small(optim__name=name)
    for name in ("adadelta", "adafactor", "adamax", "asgd", "nadam", "radam", "rprop")
}
GRID |= {
    "mse": regression("nn.MSELoss()", micro_batch_size=6),
    "mae": regression("surestep.losses.mae()", precision="bf16"),
    "smooth_l1": regression("nn.SmoothL1Loss(beta=0.5)"),
    "labels": regression("surestep.losses.multilabel(pos_weight=[1.0, 2.0, 3.0])"),
    "torch_labels": regression("nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0]))"),
}
GRID |= {
    "pretrained": small(more="init=surestep.InitWeights(weights(), skip=['2']),", stop=5),
    "pretrained_average": small(
        model="network()", more="init=weights(),", average__kind="ema", average__decay=0.9
    ),
    "teacher": taught("network", micro_batch_size=6, stop=5, checkpoint__every="2 steps"),
    "teacher_bf16": taught("network()", precision="bf16"),
    "teacher_fp16": taught("network", precision="fp16"),
}
GRID |= {
    "augmented": loaded(micro_batch_size=6, stop=5, checkpoint__every="2 steps"),
    "workers": loaded(data__num_workers=2, stop=5, max_steps=9, checkpoint__every="2 steps"),
    "workers_in_order": loaded(val="rows", data__num_workers=1, data__shuffle=False),
    "loaded_own_loss": loaded("functional_mean", val="rows", average__kind="ema"),
    "loaded_rows": loaded(data="rows", more="collate_fn=torch.utils.data.default_collate,"),
    "list": loaded(
        data="(lambda *given: list(zip(*rows(*given), strict=True)))", micro_batch_size=6
    ),
    "tensor_dataset": loaded(
        "surestep.losses.multiclass(weight='balanced')",
        data="(lambda *given: TensorDataset(*rows(*given)))",
    ),
    "padded": padded("nn.CrossEntropyLoss()", stop=5, checkpoint__every="2 steps"),
    "padded_parts": padded("surestep.losses.multiclass()", micro_batch_size=6, data__num_workers=2),
}
GRID |= {
    "weighted": small(
        more="sampler=surestep.samplers.weighted([1 + i % 3 for i in range(56)], 41),",
        micro_batch_size=6,
    ),
    "drawn_once": small(
        more="sampler=surestep.samplers.weighted(range(56), samples=28, replacement=False),"
    ),
    "balanced": small(more="sampler=surestep.samplers.balanced(),"),
    "sequential": small(more="sampler=surestep.samplers.sequential(),"),
    "custom_order": small(
        more="sampler=surestep.samplers.custom(lambda seed, _: torch.randint(56, (36 + seed,))),",
        stop=5,
        checkpoint__every="2 steps",
    ),
    "balanced_loaded": loaded(
        more="sampler=surestep.samplers.balanced(labels=rows(56, 2)[1]),", data__num_workers=1
    ),
    "by_length_in_windows": padded(
        "nn.CrossEntropyLoss()",
        more="sampler=surestep.samplers.by_length([3 + (i * 2) % 7 for i in range(56)], window=2),",
    ),
    "by_length": padded(
        "nn.CrossEntropyLoss()",
        more="sampler=surestep.samplers.by_length([3 + (i * 2) % 7 for i in range(56)]),",
        batch_size=5,
    ),
}
GRID["annotations"] = Case(
    f"from __future__ import annotations\n{GRID['default'].recipe}", {"max_steps": 2}
)
RECIPES = {
    "spiral": Case("spiral", {"max_steps": 25, "validation.every": "10 steps"}),
    "digits": Case("digits", {"max_steps": 4, "task.width": 4, "validation.every": "2 steps"}),
    "chars": Case("chars", {"max_steps": 3, "batch_size": 4, "task.width": 16, "task.heads": 2}),
    "tabular": Case("tabular", {"max_steps": 30}),
    "imbalanced": Case("imbalanced", {"max_steps": 30}),
    "finetune": Case("finetune", {"epochs": 35, "task.width": 4, "task.pretrain_steps": 5}),
    "finetune_from_scratch": Case(
        "finetune", {"epochs": 31, "task.width": 4, "task.pretrain_steps": 0}
    ),
    "distill": Case("distill", {"epochs": 2, "task.teacher_width": 4, "task.teacher_steps": 5}),
    "images": Case(
        "images",
        {"max_steps": 3, "task.width": 4, "task.files": 60, "task.size": 64, "data.num_workers": 1},
    ),
    "segment": Case(
        "segment", {"max_steps": 3, "batch_size": 4, "task.samples": 12, "task.width": 2}
    ),
}

RANKS = {
    "network": small(
        average__kind="ema",
        average__decay=0.9,
        average__buffers="copy",
        schedule__name="cosine",
        validation__every="3 steps",
        early_stop__patience=9,
    ),
    "weights": small(
        "surestep.losses.multiclass(weight='balanced')",
        model="lambda: nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.Linear(16, 3))",
    ),
}


def check_smallest(folder: Callable[[], Path]) -> None:
    (parent := folder()).mkdir()
    compare({"smallest": small(max_grad_norm=0.1)}, parent)


@pytest.fixture(autouse=True)
def _forget_recipes(tmp_path: Path) -> Iterator[None]:
    with forget_modules(tmp_path):
        yield


def test_script_of_the_smallest_plan_trains_the_same_weights(folder):
    check_smallest(folder)


@pytest.mark.slow("trains a grid of Plans twice")
def test_scripts_of_a_grid_of_plans_train_the_same_weights(tmp_path: Path):
    compare(GRID, tmp_path)


@pytest.mark.slow("trains the built-in recipes twice")
def test_scripts_of_the_built_in_recipes_train_the_same_weights(tmp_path: Path):
    compare(RECIPES, tmp_path)


@pytest.mark.slow("starts two processes three times")
def test_scripts_of_two_ranks_train_the_weights_of_the_run_within_rounding(tmp_path: Path):
    compare_ranks(RANKS, tmp_path)
