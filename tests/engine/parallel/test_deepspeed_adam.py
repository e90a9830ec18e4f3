"""DeepSpeed's own Adam: which one a Plan gives, over which groups, and what it counts with."""

from types import SimpleNamespace

import pytest
import torch

from surestep.base.errors import ConfigError
from surestep.engine.optim import deepspeed_adam
from surestep.engine.plan.plan import Plan
from tests.laws.test_law_9_honest import plan_of
from tests.laws.wishes import MANY, ZERO
from tests.needs import needs

LEFT_OUT = ("bias_correction", "step", "foreach", "fused")
OWN = {"parallel.deepspeed": '{"optimizer": {"params": {"torch_adam": false}}}'}


def planned(**more: object) -> Plan:
    return plan_of({**ZERO, **OWN, "optim.lr": 0.01, **more}, **MANY)


class Compiled(torch.optim.AdamW):
    """What DeepSpeed's classes are made with, and called with by their compiled part."""

    def __init__(self, groups, *, lr, betas, eps, weight_decay, **mode) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.mode, self.opt_id, self.made = mode, 7, []
        self.adam_w_mode = any(mode.values())
        self.ds_opt_adam = SimpleNamespace(create_adam=lambda *each: self.made.append(each))


class Uncompiled(torch.optim.AdamW):
    def __init__(self, *_, **__) -> None:
        raise RuntimeError("the op failed to build") from OSError("no g++ here")


@pytest.fixture
def ops(monkeypatch):
    """DeepSpeed's classes without their compiled parts."""
    adam = needs("deepspeed.ops.adam")

    class DeepSpeedCPUAdam(Compiled): ...

    class FusedAdam(Compiled): ...

    monkeypatch.setattr(adam, "DeepSpeedCPUAdam", DeepSpeedCPUAdam)
    monkeypatch.setattr(adam, "FusedAdam", FusedAdam)
    return adam


def groups() -> list[dict[str, object]]:
    decayed, plain = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))
    return [{"params": [decayed], "lr": 0.1}, {"params": [plain], "weight_decay": 0.0}]


@pytest.mark.parametrize(
    ("said", "kind", "mode"),
    [
        ({}, "FusedAdam", {"adam_w_mode": True}),
        ({"optim.name": "adam"}, "FusedAdam", {"adam_w_mode": False}),
        ({"parallel.offload": "optimizer"}, "DeepSpeedCPUAdam", {"adamw_mode": True}),
        (
            {"parallel.offload": "all", "parallel.zero_stage": 3, "optim.name": "adam"},
            *("DeepSpeedCPUAdam", {"adamw_mode": False}),
        ),
    ],
)
def test_offload_and_name_say_which_one_it_is(ops, said, kind, mode):
    made = deepspeed_adam.adam(planned(**said), groups())
    assert type(made).__name__ == kind
    assert made.mode == mode


def test_it_moves_our_groups_with_our_options(ops):
    said = {"optim.betas": (0.8, 0.9), "optim.eps": 1e-6, "optim.weight_decay": 0.2}
    one, two = deepspeed_adam.adam(planned(**said), groups()).param_groups
    assert (one["lr"], one["weight_decay"], one["betas"], one["eps"]) == (
        0.1,
        0.2,
        (0.8, 0.9),
        1e-6,
    )
    assert (two["lr"], two["weight_decay"]) == (0.01, 0.0)


def test_it_is_kept_as_torchs(ops):
    made = deepspeed_adam.adam(planned(), groups())
    assert (made.state_class_name, made.left_out) == ("AdamW", LEFT_OUT)
    assert made.param_groups[0].keys() >= torch.optim.AdamW([torch.zeros(1)]).defaults.keys()


def test_before_each_step_on_the_host_its_powers_are_forgotten(ops):
    made = deepspeed_adam.adam(planned(**{"parallel.offload": "optimizer"}), groups())
    for _ in range(2):
        made.step()
    assert made.made == [(7, 0.01, 0.9, 0.999, 1e-8, 0.01, True, False)] * 2


def test_what_cannot_be_compiled_says_what_to_do(ops, monkeypatch):
    monkeypatch.setattr(ops, "FusedAdam", Uncompiled)
    with pytest.raises(ConfigError) as caught:
        deepspeed_adam.adam(planned(), groups())
    assert "cannot be compiled here: no g++ here" in str(caught.value)
    assert "leave torch_adam out" in str(caught.value)
