from contextlib import ExitStack

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError, TaskError
from surestep.engine.optim.multi import build_optimizers
from surestep.trainer.prepare import plan_task
from tests import tiny


def model():
    shared = nn.ModuleDict({"trunk": nn.Linear(4, 4), "head": nn.Linear(4, 1)})
    return nn.ModuleDict({"shared": shared, "critic": nn.Linear(4, 1)})


def task(**optimizers):
    return surestep.Task(model(), train=(tiny.data()[0],), step=print, optimizers=optimizers)


def made(options=None, **optimizers):
    planned = plan_task(task(**optimizers), tiny.config(**(options or {})))
    return build_optimizers(planned.plan, planned.task, planned.model, ExitStack()), planned


def rmsprop(groups):
    return torch.optim.RMSprop(groups, lr=0.5)


def test_each_optimizer_trains_the_module_of_its_name():
    optimizers, planned = made(shared=surestep.Optim(), critic=surestep.Optim(name="sgd"))
    held = [each for group in optimizers["critic"].param_groups for each in group["params"]]
    assert {id(each) for each in held} == {id(p) for p in planned.model["critic"].parameters()}
    assert isinstance(optimizers["critic"], torch.optim.SGD)
    assert isinstance(optimizers["shared"], torch.optim.AdamW)


def test_modules_of_an_optimizer_are_selected_by_path():
    optimizers, planned = made(
        actor=surestep.OptimizerSpec(modules=["shared.head"]),
        critic=surestep.OptimizerSpec(modules=["shared.trunk", "critic"]),
    )
    held = [each for group in optimizers["actor"].param_groups for each in group["params"]]
    expected = planned.model["shared"]["head"].parameters()
    assert {id(each) for each in held} == {id(each) for each in expected}


def test_unset_options_come_from_the_config():
    options = {"optim": {"lr": 0.25, "weight_decay": 0.5}, "schedule": {"name": "cosine"}}
    _, planned = made(
        options, shared=surestep.Optim(betas=(0.5, 0.5)), critic=surestep.Optim(lr=0.1)
    )
    first, second = planned.plan.optimizers.values()
    assert (first.optim_lr, first.optim_options["betas"], first.optim_weight_decay) == (
        0.25,
        (0.5, 0.5),
        0.5,
    )
    assert (second.optim_lr, second.schedule.name) == (0.1, "cosine")


def test_different_optimizer_takes_no_options_from_the_config():
    _, planned = made(
        {"optim": {"lr": 0.25, "eps": 0.5}},
        shared=surestep.Optim(),
        critic=surestep.Optim(name="sgd"),
    )
    assert planned.plan.optimizers["shared"].optim_options["eps"] == 0.5
    assert planned.plan.optimizers["critic"].optim_lr == 1e-3


def test_option_of_a_different_optimizer_is_rejected():
    with pytest.raises(
        ConfigError, match=r"momentum=0\.9 requires optim\.name='muon', 'rmsprop' or 'sgd', but"
    ):
        made(shared=surestep.Optim(name="adamw", momentum=0.9), critic=surestep.Optim())


def test_plan_gives_reasons_for_each_optimizer():
    _, planned = made(shared=surestep.Optim(lr=0.5), critic=rmsprop)
    plan = planned.plan
    assert plan.reason("optimizers.shared.optim.lr") == "set in Python"
    assert plan.reason("optimizers.critic.optim.name") == "the Task brings its optimizer"
    assert plan.guard == "host"
    assert "(critic)" in plan.reason("guard")
    assert not [each for each in plan.decisions if each.option.startswith("optim.")]
    own = [each for each in plan.decisions if each.option.startswith("optimizers.")]
    assert all(each.value is not None for each in own)


@pytest.mark.parametrize(
    ("optimizers", "sentence"),
    [
        ({"shared": surestep.Optim()}, "critic.weight is in no optimizer"),
        (
            {
                "shared": surestep.Optim(),
                "critic": surestep.OptimizerSpec(modules=["critic", "shared.head"]),
            },
            "shared.head.weight is in shared and in critic",
        ),
        ({"critik": surestep.Optim()}, "'critik'.* which does not exist. Did you mean 'critic'"),
    ],
)
def test_parameter_not_in_exactly_one_optimizer_is_rejected(optimizers, sentence):
    with pytest.raises(TaskError, match=sentence):
        made(**optimizers)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"step": None}, r"names several optimizers.*Task\(step=\.\.\.\)"),
        ({"step": None, "optimizers": {}}, r"has no loss"),
        ({"step": 3}, "step is a int, not a function"),
        ({"optimizer": rmsprop}, "optimizer= and optimizers="),
        ({"val": (torch.zeros(4, 4),)}, "no loss to measure"),
        ({"optimizers": {"a/b": surestep.Optim()}}, "cannot be called 'a/b'"),
        ({"optimizers": {1: surestep.Optim()}}, "cannot be called 1"),
        ({"optimizers": {"a": 3}}, r"optimizers\['a'\] is a int"),
        ({"items": "tokens"}, "items='tokens' is not known. Use 'samples'"),
    ],
)
def test_invalid_combination_for_a_manual_step_is_rejected(parts, sentence):
    usual = {
        "model": model(),
        "train": (tiny.data()[0],),
        "step": print,
        "optimizers": {"shared": surestep.Optim(), "critic": surestep.Optim()},
    }
    with pytest.raises(TaskError, match=sentence):
        plan_task(surestep.Task(**{**usual, **parts}), tiny.config())


def test_groups_match_only_the_modules_of_the_optimizer():
    optimizers, _ = made(
        shared=surestep.Optim(lr=0.5, groups=["head.* lr=0.1x"]), critic=surestep.Optim()
    )
    rates = {group["lr"] for group in optimizers["shared"].param_groups}
    assert sorted(rates) == pytest.approx([0.05, 0.5])


def test_temporary_freeze_with_a_manual_step_is_rejected():
    with pytest.raises(ConfigError, match=r"optimizer 'shared' freeze .* read manual_step\.index"):
        made(shared=surestep.Optim(groups=["head.* freeze='1 epoch'"]), critic=surestep.Optim())
