"""What a rank judges as its own, where its gradients are added up with those of others."""

import torch
from torch import nn

from surestep.engine.diagnose.lockstep import CollectiveDetector, local_gradients


class Gathered(nn.Linear):
    """Says that it is gathered, as what FSDP cuts does."""

    def unshard(self) -> None: ...


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Gathered(2, 3), nn.Linear(3, 1))


def backward(model: nn.Module, value: float) -> None:
    torch.autograd.backward(model(torch.full((1, 2), value)).sum())


def test_gradients_that_are_not_finite_go_by_the_parameters_name():
    model = net()
    with local_gradients(model) as bad:
        backward(model, float("inf"))
    assert set(bad) == {"0.weight"}  # the second layer is in no block that is gathered
    assert bad["0.weight"].isinf().all()


def test_finite_gradients_are_none_of_them_and_no_hook_stays():
    model = net()
    with local_gradients(model) as bad:
        backward(model, 1.0)
    assert bad == {}
    backward(model, float("inf"))
    assert bad == {}


def test_a_model_that_calls_nobody_is_not_heard():
    listening = CollectiveDetector()
    with listening:
        backward(net(), 1.0)
    assert not listening.talks
