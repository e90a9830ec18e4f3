import pytest
import torch
from torch import nn

from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.state.state import trainable_parameters
from tests import tiny
from tests.laws.support.loss_cases import tokens
from tests.laws.support.registry_entries.optimizers import Words, wide

MORE = [
    ("adam", {"amsgrad": True}),
    ("rmsprop", {"momentum": 0.9}),
    ("rmsprop", {"centered": True, "momentum": 0.9}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "dampening": 0.5}),
    ("lbfgs", {"history_size": 3, "max_iter": 5, "lr": 0.01}),
    ("adamw8bit", {"min_8bit_size": 16}),
]


def storage_sizes(value):
    """Sizes of the tensors in a state; each storage counts once."""
    if isinstance(value, torch.Tensor):
        return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()}
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return {key: size for each in inner for key, size in storage_sizes(each).items()}
    return {}


def size_of(planned):
    trained = list(trainable_parameters(planned.model).values())
    plan = planned.plan
    return state_bytes(plan.optim_name, plan.optim_options, planned.model, trained)


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in OPTIMIZERS if name != "lbfgs"), *MORE]
)
def test_estimated_optimizer_memory_matches_the_actual_state(tmp_path, name, options):
    parts = {"model": wide()["model"], "train": wide()["train"]}
    if name == "sparse_adam":
        parts = {"model": Words(), "train": tokens()}
    said = {"optim": {"name": name, **options}, "max_steps": 3}
    planned = tiny.plan(parts, **said)
    expected = size_of(planned)
    with tiny.prepare(tmp_path / "r", parts, **said) as session:
        list(session.steps())
        found = sum(storage_sizes(dict(session.optimizer.state)).values())
    assert expected == pytest.approx(found, rel=0.02)


def test_adafactor_has_a_row_and_a_column_of_each_matrix_of_a_tensor():
    weight = torch.zeros(3, 5, 2, 4, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.Adafactor([weight])
    optimizer.step()
    found = sum(storage_sizes(dict(optimizer.state)).values())
    assert state_bytes("adafactor", {}, nn.Module(), [weight]) == found


def test_tied_parameters_count_once_in_the_optimizer_memory():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    planned = tiny.plan(
        {"model": model, "train": (torch.ones(8, 4), torch.ones(8, 4)), "loss": nn.MSELoss()},
        optim={"name": "adam"},
    )
    assert size_of(planned) == 2 * 4 * (16 + 4 + 4) + 3 * 4
