import pytest
import torch
from torch import nn

import surestep
from surestep.engine.profile.memory_estimate import estimate_memory
from surestep.recipes.load import load
from surestep.trainer.planning import plan_task
from tests import tiny


def measured(session):
    """The bytes that a session uses after a step."""
    moments = [
        value
        for state in session.optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    parameters = list(session.model.parameters())
    return {
        "weights": size(parameters),
        "buffers": size(session.model.buffers()),
        "gradients": size(each.grad for each in parameters if each.grad is not None),
        "optimizer": size(moments),
    }


def size(tensors):
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def planned_and_measured(folder, parts, **options):
    planned = tiny.plan(parts, **options)
    takes = estimate_memory(planned.model, planned.plan)
    with tiny.prepare(folder, parts, **options) as session:
        next(session.steps())
        return takes, measured(session)


def assert_close(takes, found):
    for kind, value in found.items():
        assert getattr(takes, kind) == pytest.approx(value, rel=0.1), kind
    assert takes.activations is None


@pytest.fixture
def few_files(tmp_path, monkeypatch):
    from surestep.recipes import chars

    path = tmp_path / "text.py"
    path.write_text("def add(a, b):\n    return a + b\n" * 600)
    monkeypatch.setattr(chars, "source_files", lambda: [path] * 21)


@pytest.mark.parametrize("name", ["digits", "spiral", "chars"])
def test_estimate_for_a_recipe_is_within_10_percent(tmp_path, few_files, name):
    recipe = load(name)
    config = recipe.config.replace_options({"logging.progress": "quiet", "batch_size": 4})
    planned = plan_task(recipe.build({}, config), config)
    takes = estimate_memory(planned.model, planned.plan)
    with surestep.prepare(recipe.build({}, config), config, run=tmp_path / "r") as session:
        next(session.steps())
        assert_close(takes, measured(session))


@pytest.mark.parametrize(
    ("net", "optim"),
    [
        ("wide", {"name": "sgd"}),
        ("wide", {"name": "sgd", "momentum": 0.9}),
        ("wide", {"name": "sgd", "momentum": 0.9, "nesterov": True}),
        ("frozen", {"name": "sgd", "momentum": 0.9}),
        *((net, {"name": "adamw"}) for net in ("wide", "frozen", "shared", "normed", "double")),
    ],
)
def test_estimate_is_within_10_percent(tmp_path, net, optim):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 3))
    if net == "frozen":
        model[1].requires_grad_(False)
    elif net == "shared":
        model.insert(2, nn.Linear(64, 64))
        model[2].weight = model[1].weight
    elif net == "normed":
        model.insert(1, nn.BatchNorm1d(64))
    parts = {"model": model}
    if net == "double":
        model.double()
        x, y = tiny.data()
        parts["train"] = (x.double(), y)
    assert_close(*planned_and_measured(tmp_path, parts, optim=optim))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_are_estimated_in_full_precision(tmp_path, precision):
    assert_close(*planned_and_measured(tmp_path, {"model": tiny.model()}, precision=precision))


def test_memory_of_a_custom_optimizer_is_unknown():
    planned = tiny.plan({"optimizer": torch.optim.RMSprop})
    assert estimate_memory(planned.model, planned.plan).optimizer is None


def test_parameters_are_counted_by_module():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    model[2].bias.requires_grad_(False)
    planned = tiny.plan({"model": model})
    takes = estimate_memory(planned.model, planned.plan)
    assert takes.modules == [
        ("0", "Linear", 40, 40),
        ("1", "Tanh", 0, 0),
        ("2", "Linear", 27, 24),
    ]
    assert (takes.parameters, takes.trained) == (67, 64)


def test_direct_parameters_of_the_model_are_in_the_table():
    class Scaled(nn.Linear):
        pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))
            self.inner = Scaled(4, 3)

        def forward(self, x):
            return self.inner(x) * self.scale.sum()

    takes = estimate_memory(Net(), tiny.plan().plan)
    assert sum(row[2] for row in takes.modules) == takes.parameters == 20


def test_model_without_submodules_is_one_row():
    takes = estimate_memory(nn.Linear(4, 3), tiny.plan().plan)
    assert takes.modules == [("model", "Linear", 15, 15)]


def test_shared_parameter_counts_once():
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    takes = estimate_memory(nn.Sequential(first, second), tiny.plan().plan)
    assert (takes.parameters, takes.weights, takes.gradients) == (64, 256, 256)
