import copy

import torch
from torch import nn

from surestep.engine.modes import TrainModes, preserve_modes, preserve_weights, set_modes


class Merging(nn.Linear):
    """A linear layer that adds a product to its weight in eval mode, as merged LoRA does."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.a = nn.Parameter(0.3 * torch.randn(2, inputs))
        self.b = nn.Parameter(0.3 * torch.randn(outputs, 2))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode is self.merged:
            self.weight.data += (self.b @ self.a).detach() * (-1 if mode else 1)
            self.merged = not mode
        return self

    def forward(self, x):
        out = super().forward(x)
        return out if self.merged else out + x @ self.a.T @ self.b.T


class Refusing(nn.Module):
    """A backbone that stays in eval mode, but notes what it was asked for."""

    def __init__(self):
        super().__init__()
        self.norm, self.asked = nn.BatchNorm1d(3), True

    def train(self, mode=True):
        super().train(False)
        self.asked = mode
        return self


class OwnEval(nn.Module):
    """A model with its own eval()."""

    path = "training"

    def eval(self):
        self.path = "evaluation"
        return super().eval()

    def train(self, mode=True):
        if mode:
            self.path = "training"
        return super().train(mode)


def modes_of(model):
    return [module.training for module in model.modules()]


def test_modes_are_restored_by_train_of_the_module():
    model = nn.Sequential(Merging(3, 3), nn.BatchNorm1d(3), Refusing(), OwnEval())
    model[1].eval()
    model[2].train()
    before, weight = modes_of(model), model[0].weight.detach().clone()
    with preserve_modes(model.modules()):
        model.eval()
        assert (model[0].merged, model[2].asked) == (True, False)
        assert (model[0].weight - weight).abs().max() > 0.02
    assert modes_of(model) == before == [True, True, False, False, False, True]
    assert (model[0].merged, model[2].asked, model[3].path) == (False, True, "training")
    torch.testing.assert_close(model[0].weight, weight)


def test_eval_of_a_module_itself_is_called():
    model = OwnEval().eval()
    with preserve_modes(model.modules()):
        model.train()
    assert (model.path, model.training) == ("evaluation", False)


def test_parts_kept_in_eval_mode_stay_so_with_their_own_train():
    model = nn.Sequential(Merging(3, 3), Merging(3, 3))
    modes = TrainModes(model, (model[1],))
    assert [part.merged for part in model] == [False, True]
    model.eval()
    modes.apply()
    assert [part.merged for part in model] == [False, True]
    assert modes_of(model) == [True, True, False]


def test_modes_that_are_set_already_call_nothing():
    model = Merging(3, 3)
    calls = []
    model.train = calls.append
    set_modes([(model, True)])
    assert calls == []


def test_weights_are_the_same_bits_after_a_check():
    torch.manual_seed(0)
    model = nn.Sequential(Merging(30, 30), nn.Linear(30, 2))
    before = copy.deepcopy(model.state_dict())
    with preserve_modes(model.modules()):
        model.eval()
    assert not torch.equal(model[0].weight, before["0.weight"])  # a rounding error
    model.load_state_dict(before)
    with preserve_weights(model), preserve_modes(model.modules()):
        model.eval()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
