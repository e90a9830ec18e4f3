"""Parameters that make a tensor have the role of that tensor."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations as new
from torch.nn.utils import parametrize, spectral_norm, weight_norm

from surestep.engine.model.layers import layers_of
from surestep.engine.model.parametrized import made_shapes, own_parameters
from surestep.engine.optim.param_groups import no_decay_params
from surestep.engine.optim.param_roles import hidden_matrices, sparse_embeddings


class Scaled(nn.Module):
    """A custom parametrization with parameters of its own."""

    def __init__(self, size):
        super().__init__()
        self.scale, self.low = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(size, 2))

    def forward(self, weight):
        return weight * self.scale + self.low.sum(1)[:, None]


class Flat(nn.Module):
    """Makes a bias of a matrix."""

    def forward(self, matrix):
        return matrix.sum(1)

    def right_inverse(self, bias):
        return torch.stack([bias, bias], 1) / 2


def old(function, module, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        return function(module, **options)


def scaled(module):
    return parametrize.register_parametrization(module, "weight", Scaled(len(module.weight)))


WAYS = {
    "weight norm": new.weight_norm,
    "weight norm of all": lambda module: new.weight_norm(module, dim=None),
    "spectral norm": new.spectral_norm,
    "orthogonal": new.orthogonal,
    "custom": scaled,
    "old weight norm": lambda module: old(weight_norm, module),
    "old spectral norm": lambda module: old(spectral_norm, module),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def without_decay(model):
    ids = no_decay_params(model)
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


@ways
@pytest.mark.parametrize(
    "make",
    [lambda: nn.Embedding(9, 4), lambda: nn.EmbeddingBag(9, 4), lambda: nn.LayerNorm((9, 4))],
)
def test_no_parameter_of_a_parametrized_table_or_norm_decays(make, way):
    module = way(make())
    assert without_decay(module) == {name for name, _ in module.named_parameters()}


@ways
def test_what_makes_a_linear_weight_decays(way):
    module = way(nn.Linear(4, 4))
    kept = {name for name, _ in module.named_parameters() if "scale" in name or name == "bias"}
    assert without_decay(module) == kept


@ways
def test_only_the_parameter_of_the_shape_of_a_weight_is_a_hidden_matrix(way):
    model = nn.Sequential(way(nn.Embedding(9, 4)), way(nn.Linear(4, 5)), way(nn.Linear(5, 3)))
    (own,) = (
        name
        for name, parameter in model.named_parameters()
        if name.startswith("1.") and parameter.shape == (5, 4)
    )
    assert [name for name in hidden_matrices(model) if "low" not in name] == [own]


def test_bias_that_is_made_of_a_matrix_is_a_bias():
    first = nn.Linear(4, 5)
    parametrize.register_parametrization(first, "bias", Flat(), unsafe=True)
    model = nn.Sequential(first, nn.Linear(5, 3))
    bias = "0.parametrizations.bias.original"
    assert dict(model.named_parameters())[bias].dim() == 2
    assert without_decay(model) == {bias, "1.bias"}
    assert hidden_matrices(model) == ["0.weight"]


@ways
def test_added_biases_of_attention_do_not_decay(way):
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    assert without_decay(attention) == {"in_proj_bias", "bias_k", "bias_v", "out_proj.bias"}
    way(attention.out_proj)
    new.weight_norm(attention, "bias_k")
    made = {f"parametrizations.bias_k.original{part}" for part in range(2)}
    kept = {name for name in dict(attention.named_parameters()) if "scale" in name}
    assert without_decay(attention) == {
        *("in_proj_bias", "bias_v", "out_proj.bias"),
        *made,
        *kept,
    }


def test_weight_shared_with_a_parametrized_table_does_not_decay():
    table, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = table.weight
    new.spectral_norm(table)
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": head, "table": table})
    assert model["head"].weight is model["table"].parametrizations.weight.original
    assert "head.weight" in without_decay(model)
    assert hidden_matrices(model) == ["body.weight"]


@ways
def test_parametrized_layer_is_the_layer_that_it_was(way):
    def make(way):
        return nn.Sequential(way(nn.Linear(4, 5)), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.ReLU())

    plain, own = layers_of(make(lambda module: module)), layers_of(make(way))
    assert [layer.modules for layer in own] == [layer.modules for layer in plain]
    assert sum(len(layer.parameters) for layer in own) == len(list(make(way).parameters()))


@ways
def test_roles_change_no_buffer_and_draw_no_random_numbers(way):
    model = nn.Sequential(way(nn.Embedding(9, 4)), way(nn.Linear(4, 5)))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    for ask in (no_decay_params, hidden_matrices, sparse_embeddings, layers_of, made_shapes):
        ask(model)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_shape_is_that_of_the_largest_part_if_it_cannot_be_computed_without_values():
    class Reading(nn.Module):
        def forward(self, weight):
            return weight * (1 if float(weight.detach()[0, 0]) > 0 else 2)

    module = nn.Linear(4, 5)
    parametrize.register_parametrization(module, "weight", Reading())
    (original,) = own_parameters(module, "weight")
    assert made_shapes(module) == {id(original): (5, 4)}
