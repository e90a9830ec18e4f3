import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from surestep.engine.modes import TrainModes
from surestep.engine.optim.freezing import frozen_norm_modules, trained_modules
from surestep.engine.optim.param_groups import make_param_groups
from tests import tiny


def net(affine=True):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=affine), nn.Tanh())
    return nn.Sequential(body, nn.Linear(8, 8), nn.Linear(8, 3))


def opened(folder, *groups, model=None, **more):
    parts = {"model": model or net(), **more}
    return tiny.prepare(folder / "run", parts, optim={"groups": groups})


def trained(session):
    with session:
        for _ in session.steps():
            pass
    return session


def changed_tensors(session, before):
    now = session.model.state_dict()
    return {name for name in before if not torch.equal(now[name], before[name])}


def copy_state_dict(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("groups_text", "affine"),
    [("0 freeze", True), ("0 freeze", False), ("type:BatchNorm1d freeze", True)],
)
def test_frozen_batchnorm_keeps_weights_and_statistics(groups_text, affine, tmp_path):
    session = opened(tmp_path, groups_text, model=net(affine))
    before = copy_state_dict(session.model)
    found = changed_tensors(trained(session), before)
    assert not {name for name in found if name.startswith("0.1.")}
    assert {"1.weight", "2.bias"} <= found


def test_partly_trained_batchnorm_updates_its_statistics(tmp_path):
    session = opened(tmp_path, "0.1.weight freeze")
    before = copy_state_dict(session.model)
    found = changed_tensors(trained(session), before)
    assert "0.1.weight" not in found
    assert {"0.1.bias", "0.1.running_mean"} <= found


@pytest.mark.parametrize(
    ("frozen", "listed"), [((), False), (("weight",), False), (("weight", "bias"), True)]
)
def test_normalization_is_frozen_if_all_of_its_parameters_are(frozen, listed):
    norm = net()[0][1]
    before = list(norm.parameters())
    for name in frozen:
        getattr(norm, name).requires_grad_(False)
    assert frozen_norm_modules(norm, before) == [norm] * listed
    assert frozen_norm_modules(norm, []) == []  # it was not trained before


@pytest.mark.parametrize(
    ("groups_text", "is_trained"),
    [("1 freeze", True), ("0 freeze=2 steps", True), ("0 freeze", False)],
)
def test_normalization_that_is_unfrozen_later_is_in_training_mode_at_some_step(
    groups_text, is_trained
):
    planned = tiny.plan({"model": net()}, optim={"groups": [groups_text]})
    model, groups = planned.model, make_param_groups(planned.model, planned.plan)
    found = trained_modules(TrainModes(model), model, planned.plan, groups)
    assert (model[0][1] in found) is is_trained
    assert model[0][0] in found


def test_keep_eval_module_stays_in_eval_mode_after_unfreezing(tmp_path):
    model = net()
    session = opened(tmp_path, "0 freeze=2 steps", model=model, keep_eval=[model[0][1]])
    before = copy_state_dict(model)
    found = changed_tensors(trained(session), before)
    assert "0.1.weight" in found
    assert "0.1.running_mean" not in found


def test_requires_grad_is_restored_when_the_session_closes(tmp_path):
    model = net()
    model[1].bias.requires_grad_(False)
    with opened(tmp_path, "0 freeze", "1 freeze=2 steps", model=model):
        assert not model[0][0].weight.requires_grad
        assert not model[1].weight.requires_grad
    assert {name for name, each in model.named_parameters() if not each.requires_grad} == {"1.bias"}


def test_modules_are_unfrozen_one_after_another(tmp_path):
    seen = []
    with opened(tmp_path, "0 freeze=4 steps", "1 freeze=2 steps") as session:
        for result in session.steps():
            seen.append({name[0] for name in result.norms.names})
    assert seen == [{"2"}] * 2 + [{"1", "2"}] * 2 + [{"0", "1", "2"}] * 2


def test_skipped_steps_do_not_count_for_unfreezing(tmp_path):
    x, y = tiny.data(48)
    x[8], seen = torch.nan, []
    parts = {"model": net(), "train": (x, y)}
    options = {"data": {"shuffle": False}, "on_nonfinite": "skip", "max_steps": 6}
    options["optim"] = {"groups": ["0 freeze=2 steps"]}
    with tiny.prepare(tmp_path / "run", parts, **options) as session:
        for _ in session.steps():
            seen.append(session.model[0][0].weight.grad is not None)
    assert session.state.counts.nonfinite == 1
    assert seen == [False, False, False, True, True, True]


def test_resuming_before_the_unfreeze_step_freezes_again(tmp_path):
    with opened(tmp_path, "0 freeze=2 steps") as session:
        start = session.state.progress
        for result in session.steps():
            if result.step == 3:
                break
        assert session.model[0][0].weight.requires_grad
        session.state.progress = start
        next(session.steps())
        assert not session.model[0][0].weight.requires_grad
        assert session.model[0][0].weight.grad is None
        assert not session.model[0][1].training


class UnfreezeCallback(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 2:
            state.model[0].requires_grad_(True)


@pytest.mark.parametrize("by_hand", [True, False])
def test_unfreezing_by_hand_is_rejected(by_hand, tmp_path):
    model = net()
    if by_hand:
        model[0].requires_grad_(False)
    config = tiny.config(optim={"groups": [] if by_hand else ["0 freeze"]})
    trainer = surestep.Trainer(
        tiny.task(model=model), config, run=tmp_path / "run", callbacks=[UnfreezeCallback()]
    )
    with pytest.raises(TaskError, match=r"0\.0\.weight.* got requires_grad=True during the run"):
        trainer.fit()


def test_frozen_module_without_gradients_is_accepted(tmp_path):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.spare, self.used = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    session = opened(tmp_path, "spare freeze=2 steps", model=Unused())
    before = copy_state_dict(session.model)
    assert changed_tensors(trained(session), before) == {"used.weight", "used.bias"}


def test_constant_freezing_adds_no_work_to_the_step(tmp_path):
    with opened(tmp_path, "0 freeze", "2 lr=0.5x") as session:
        assert session.state.unfreezing is None


def square(manual_step):
    for micro in manual_step.micro_batches("net"):
        manual_step.backward(manual_step.models["net"](micro.args[0]).pow(2).mean(), micro)
    manual_step.step("net")


def test_frozen_batchnorm_is_unchanged_with_several_optimizers(tmp_path):
    model = nn.ModuleDict({"net": net()})
    optimizers = {"net": surestep.Optim(groups=["0 freeze"])}
    task = surestep.Task(model, train=(tiny.data()[0],), step=square, optimizers=optimizers)
    session = surestep.prepare(task, tiny.config(), run=tmp_path / "run")
    before = copy_state_dict(model)
    found = changed_tensors(trained(session), before)
    assert {"net.1.weight", "net.2.bias"} <= found
    assert not {name for name in found if name.startswith("net.0.")}
