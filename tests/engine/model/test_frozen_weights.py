import pytest
import torch
from torch import nn

from surestep.engine.model.frozen_weights import (
    fingerprint,
    fingerprints,
    note_base,
    omitted_weights,
)
from tests import tiny


def test_fingerprint_depends_on_dtype_shape_and_values():
    values = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4).bfloat16(),
        torch.zeros(4, dtype=torch.float64),
        torch.tensor([0.0, 0.0, 0.0, -0.0]),
        torch.zeros(()),
    ]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint(torch.zeros(4)) == fingerprint(nn.Parameter(torch.zeros(8)[::2]))


def test_only_frozen_parameters_have_a_fingerprint():
    model = tiny.model()
    model[0].requires_grad_(False)
    assert list(fingerprints(model)) == ["0.weight", "0.bias"]


def test_tied_parameter_has_a_fingerprint_for_each_name():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    model.requires_grad_(False)
    assert list(fingerprints(model)) == ["0.weight", "1.weight"]


def test_parameter_once_unfrozen_is_saved_even_if_frozen_again():
    model = tiny.model()
    model[0].requires_grad_(False)
    base = fingerprints(model)
    state = tiny.state_of(model, steps=0)
    note_base(state)
    assert omitted_weights(state) == base
    model[0].weight.requires_grad_(True)
    assert list(omitted_weights(state)) == ["0.bias"]
    state.optimizer.state[model[0].weight] = {"step": torch.ones(())}
    model[0].weight.requires_grad_(False)
    assert list(omitted_weights(state)) == ["0.bias"]


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("dtype", [torch.complex128, torch.float64, torch.float32, torch.bfloat16])
def test_frozen_parameter_that_other_code_changed_is_saved(dtype):
    model = tiny.model()
    state = tiny.state_of(model, steps=0)
    model.to(dtype).requires_grad_(False)
    note_base(state)
    names = list(state.base)
    assert list(omitted_weights(state)) == names
    before = model[0].weight.data.clone()
    one_sign = before.clone()
    one_sign[0, 0] = -one_sign[0, 0]
    # As many of each value; the same but for the highest bits, of all or of one.
    for other in (before.roll(1, 0), -before, one_sign):
        model[0].weight.data.copy_(other)
        assert list(omitted_weights(state)) == [name for name in names if name != "0.weight"]
