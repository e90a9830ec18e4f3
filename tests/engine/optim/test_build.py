from functools import partial

import pytest
import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError
from surestep.engine.optim.build import build_optimizer
from surestep.engine.optim.param_groups import (
    check_groups,
    make_param_groups,
    no_decay_params,
    parameter_groups,
)
from surestep.engine.state.state import trainable_parameters
from tests import tiny


class Tied(nn.Module):
    """A head that shares its weight with an embedding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.gate = nn.Parameter(torch.ones(()))
        self.scale = nn.Parameter(torch.ones(4))


def no_decay_names(model):
    ids = no_decay_params(model)
    return {name for name, each in model.named_parameters() if id(each) in ids}


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LayerNorm((4, 4)),
        nn.GroupNorm(2, 4),
        nn.RMSNorm((4, 4)),
        nn.Embedding(4, 4),
        nn.EmbeddingBag(4, 4),
    ],
    ids=lambda each: type(each).__name__,
)
def test_norms_and_embeddings_have_no_weight_decay(norm):
    model = nn.Sequential(nn.Linear(4, 4), norm)
    assert no_decay_names(model) == {"0.bias"} | {
        f"1.{name}" for name, _ in norm.named_parameters()
    }


def test_biases_scales_and_gates_have_no_weight_decay():
    assert no_decay_names(Gated()) == {"gate", "scale"}
    assert no_decay_names(nn.Conv2d(2, 2, 3)) == {"bias"}


def test_head_tied_to_an_embedding_has_no_weight_decay():
    model = Tied()
    assert no_decay_names(model) == {"table.weight", "body.bias"}
    assert list(trainable_parameters(model)) == ["table.weight", "body.weight", "body.bias"]


def built(planned):
    groups = make_param_groups(planned.model, planned.plan)
    return build_optimizer(planned.plan, planned.task.optimizer, planned.model, groups)


def groups_of(model, **said):
    return parameter_groups(make_param_groups(model, tiny.plan({"model": model}, optim=said).plan))


def test_groups_contain_each_trained_parameter_once():
    model = Tied()
    model.body.bias.requires_grad_(False)
    first, second = groups_of(model, weight_decay=0.3)
    assert (first["weight_decay"], second["weight_decay"]) == (0.3, 0.0)
    assert [id(each) for each in first["params"]] == [id(model.body.weight)]
    assert [id(each) for each in second["params"]] == [id(model.table.weight)]


def test_unset_weight_decay_is_the_default_of_the_optimizer():
    planned = tiny.plan({"optimizer": torch.optim.Adam, "model": Tied()})
    first, second = parameter_groups(make_param_groups(planned.model, planned.plan))
    assert "weight_decay" not in first
    assert second["weight_decay"] == 0.0


def test_empty_group_is_dropped():
    assert len(groups_of(nn.Linear(4, 4, bias=False))) == 1


@pytest.mark.parametrize(
    ("said", "kind", "options"),
    [
        ({}, torch.optim.AdamW, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "fused": True}),
        (
            {"name": "sgd", "lr": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            torch.optim.SGD,
            {"lr": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "fused": True},
        ),
    ],
    ids=["adamw", "sgd"],
)
def test_optimizer_has_the_class_and_options_of_the_plan(said, kind, options):
    planned = tiny.plan(optim=said)
    optimizer = built(planned)
    assert isinstance(optimizer, kind)
    assert {name: optimizer.param_groups[0][name] for name in options} == options


def test_complex_parameters_use_foreach_instead_of_fused():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.cfloat))

    planned = tiny.plan({"model": Complex()})
    optimizer = built(planned)
    assert optimizer.param_groups[0]["foreach"]


def build(make):
    planned = tiny.plan({"optimizer": make, "model": tiny.model()})
    return built(planned)


def test_custom_optimizer_gets_the_groups_of_the_plan():
    optimizer = build(lambda groups: torch.optim.RMSprop(groups, lr=0.1))
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0.0]


@pytest.mark.parametrize(
    "make", [torch.optim.RAdam, partial(torch.optim.SGD, lr=0.3), lambda g: torch.optim.Adam(g)]
)
def test_class_partial_or_function_is_accepted_as_optimizer(make):
    optimizer = build(make)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert all(group["fused"] is None for group in optimizer.param_groups if "fused" in group)


class NeedsLR(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (NeedsLR, r"'lr'\. Give a class .* functools\.partial\(torch\.optim\.SGD, lr=0\.1\)"),
        (torch.optim.LBFGS, "doesn't support per-parameter options"),
        (
            lambda groups: torch.optim.LBFGS([p for each in groups for p in each["params"]]),
            "needs a closure, .* Use optim.name='lbfgs'",
        ),
    ],
)
def test_optimizer_that_cannot_be_built_or_stepped_is_rejected_with_a_fix(make, sentence):
    with pytest.raises(TaskError, match=sentence):
        build(make)


def named(**optim):
    planned = tiny.plan(optim=optim)
    groups = make_param_groups(planned.model, planned.plan)
    return build_optimizer(planned.plan, planned.task.optimizer, planned.model, groups)


def test_lbfgs_has_one_group_in_the_order_of_the_model():
    (group,) = named(name="lbfgs").param_groups
    assert [tuple(each.shape) for each in group["params"]] == [(8, 4), (8,), (3, 8), (3,)]
    assert "weight_decay" not in group


@pytest.mark.parametrize(("dampening", "has_buffers"), [(0.0, True), (0.5, False)])
def test_sgd_has_momentum_buffers_of_zero_from_the_start_if_the_first_step_is_the_same(
    dampening, has_buffers
):
    optimizer = named(name="sgd", momentum=0.9, dampening=dampening)
    buffers = [slots["momentum_buffer"] for slots in optimizer.state.values()]
    assert len(buffers) == 4 * has_buffers
    assert not any(buffer.any() for buffer in buffers)


@pytest.mark.parametrize(
    ("optim", "sentence"),
    [
        ({"name": "lbfgs", "groups": ("0.* lr=0.5x",)}, "updates all parameters as one"),
        (
            {"name": "lbfgs", "groups": ("0.* decay=0.1",)},
            "sets a weight decay, and lbfgs has none",
        ),
        (
            {"name": "rprop", "groups": ("0.* decay=0.1",)},
            "sets a weight decay, and rprop has none",
        ),
    ],
)
def test_groups_that_the_optimizer_does_not_support_are_rejected(optim, sentence):
    with pytest.raises(ConfigError, match=sentence):
        named(**optim)


def test_lr_multiples_beside_muon_apply_to_adamw_lr():
    planned = tiny.plan(
        {"model": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))},
        optim={
            **{"name": "muon", "lr": 0.02, "adamw_lr": 0.01},
            "groups": ("2.* lr=0.5x", "0.bias lr=7e-1"),
        },
    )
    groups = make_param_groups(planned.model, planned.plan)
    optimizer = build_optimizer(planned.plan, planned.task.optimizer, planned.model, groups)
    names = {id(each): name for name, each in planned.model.named_parameters()}
    rates = {
        names[id(each)]: group["lr"] for group in optimizer.param_groups for each in group["params"]
    }
    assert rates == {
        **{"0.weight": 0.02, "1.weight": 0.02, "0.bias": 0.7, "1.bias": 0.01},
        **{"2.weight": 0.005, "2.bias": 0.005},
    }


def test_function_that_does_not_return_an_optimizer_is_rejected():
    with pytest.raises(TaskError, match=r"returned a list, not a torch\.optim\.Optimizer"):
        build(lambda groups: [groups])


def test_parameter_in_no_group_is_named():
    with pytest.raises(TaskError, match=r"in no group of the optimizer .*: 0\.bias, 3\.bias\."):
        build(lambda groups: torch.optim.SGD(groups[:1], lr=0.1))


def test_parameter_in_two_groups_is_named():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [model.bias]})
    with pytest.raises(TaskError, match=r"in two groups .* updated twice: bias\. Keep one"):
        check_groups(optimizer, model)


def test_frozen_or_foreign_parameter_in_a_group_is_named():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    foreign = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), foreign], lr=0.1)
    with pytest.raises(
        TaskError, match=r"frozen or not part of.*: bias, a tensor that is not the mod"
    ):
        check_groups(optimizer, model)


def test_long_list_of_names_is_truncated():
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(6)])
    with pytest.raises(TaskError, match=r"0\.weight, .* and 3 more\."):
        check_groups(torch.optim.SGD([model[5].bias], lr=0.1), model)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sparse_adam", "which sparse_adam does not decay"),
        ("sgd", "the gradient of 0.weight is sparse, which sgd does not decay"),
        ("adagrad", "which adagrad does not decay"),
    ],
)
def test_weight_decay_of_a_sparse_embedding_is_rejected(name, sentence):
    net = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3))
    parts = {"model": net, "train": (torch.ones(20, dtype=torch.long), tiny.data()[1])}
    planned = tiny.plan(parts, optim={"name": name, "groups": ("0.* decay=0.1",)})
    groups = make_param_groups(planned.model, planned.plan)
    with pytest.raises(ConfigError, match=rf"says a decay of 0\.1 for .*{sentence}"):
        build_optimizer(planned.plan, planned.task.optimizer, planned.model, groups)


class WithoutLR(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        pass


def test_optimizer_without_a_learning_rate_is_rejected():
    with pytest.raises(TaskError, match=r"WithoutLR has no 'lr' in its groups, .* defaults"):
        build(WithoutLR)
