"""What DeepSpeed cannot do, with the words to type instead."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

import surestep
from tests.laws.support.option_values import MANY

Case = tuple[dict[str, Any], dict[str, Any], str]


class Table(nn.Module):
    """A table with sparse gradients and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)


class Scaled(nn.Linear):
    """A layer with a parameter of no dimension."""

    def __init__(self) -> None:
        super().__init__(2, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))


HERE = {"system": MANY["system"]}
BARE = {"system": lambda: replace(MANY["system"](), extras=())}
ZERO = {"parallel.strategy": "deepspeed"}
WHOLE = {**ZERO, "parallel.zero_stage": 0}
CUT = {**ZERO, "parallel.zero_stage": 3}
OWN_STEP: dict[str, Any] = {"loss": None, "step": lambda manual_step: None}
LEARNERS = {name: surestep.OptimizerSpec(optim=surestep.Optim(name="sgd")) for name in ("0", "1")}
SEVERAL = OWN_STEP | {"optimizers": LEARNERS}
COMPILED = {"system": lambda: replace(MANY["system"](), compiler=True)}

DEEPSPEED: list[Case] = [
    ({**ZERO, "micro_batch_size": "fit"}, HERE, "micro_batch_size=16"),
    (ZERO, {}, "torchrun --nproc-per-node 2"),
    (ZERO, BARE, "pip install --no-build-isolation 'deepspeed<0.20'"),
    (
        {**ZERO, "batch_size": 16, "parallel.deepspeed": '{"train_batch_size": 3}'},
        *(HERE, "set batch_size instead"),
    ),
    ({**ZERO, "parallel.offload": "all"}, HERE, "parallel.offload='optimizer'"),
    ({**WHOLE, "parallel.offload": "optimizer"}, HERE, "parallel.zero_stage=1, 2 or 3"),
    ({**ZERO, "clip_value": 0.5}, HERE, "Set max_grad_norm"),
    ({**ZERO, "logging.per_layer": True}, HERE, "leave logging.per_layer out"),
    ({**ZERO, "logging.histograms": "9 steps"}, HERE, "leave logging.histograms out"),
    ({**ZERO, "optim.name": "adagrad"}, HERE, "parallel.zero_stage=0"),
    (WHOLE, HERE | {"model": Table()}, "sparse=False"),
    (ZERO, HERE | {"model": Scaled()}, "torch.ones(1)"),
    ({**WHOLE, "precision": "bf16"}, HERE, "Set parallel.zero_stage=1"),
    ({**ZERO, "compile": "default"}, COMPILED, "Set compile='off'"),
    ({**CUT, "average.kind": "ema"}, HERE, "parallel.zero_stage up to 2"),
    ({**ZERO, "precision": "bf16", "average.kind": "ema"}, HERE, "with precision='fp32'"),
    ({**ZERO, "optim.groups": ("0.* freeze=1 step",), "epochs": 2}, HERE, "Freeze it for good"),
    ({**ZERO, "precision": "fp16", "scaler.growth_factor": 3.0}, HERE, "doubles and halves"),
    ({**ZERO, "precision": "fp16"}, HERE, "Set precision='bf16'"),
    ({**CUT, "checkpoint.weights": "trained"}, HERE, "Set checkpoint.weights='all'"),
    ({**CUT, "parallel.replica_check_every": "1 epoch"}, HERE, "or use parallel.zero_stage=2"),
    (ZERO, HERE | OWN_STEP, "The Task brings its own step"),
    (ZERO, HERE | SEVERAL, "The Task brings its own step"),
    ({**ZERO, "optim.name": "lbfgs"}, HERE, "takes steps by itself"),
]
