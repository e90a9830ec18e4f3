"""A tensor that gets a gradient and that no optimizer has is an error, with the path to it."""

from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import surestep
from surestep.base.errors import TaskError
from surestep.engine.step.unheld_leaves import UnheldLeafCheck
from tests import tiny

SCALE = nn.Parameter(torch.ones(3))


class Owner:
    def __init__(self):
        self.scale = nn.Parameter(torch.ones(3))

    def loss(self, outputs, targets):
        return cross_entropy(outputs * self.scale, targets)

    __call__ = loss


def closing():
    head = nn.Linear(3, 3)
    return lambda outputs, targets: cross_entropy(head(outputs), targets)


def of_partial():
    return partial(
        lambda head, outputs, targets: cross_entropy(head(outputs), targets), nn.Linear(3, 3)
    )


def of_global(outputs, targets):
    return cross_entropy(outputs * SCALE, targets)


def of_plain_tensor():
    scale = torch.ones(3, requires_grad=True)
    return lambda outputs, targets: cross_entropy(outputs * scale, targets)


def created(outputs, targets):
    return cross_entropy(nn.Linear(3, 3)(outputs), targets)


def of_default(outputs, targets, head=nn.Linear(3, 3)):  # noqa: B008
    return cross_entropy(head(outputs), targets)


def of_named_default(outputs, targets, *, head=nn.Linear(3, 3)):  # noqa: B008
    return cross_entropy(head(outputs), targets)


@cache
def cached():
    return nn.Linear(3, 3)


def of_cache(outputs, targets):
    return cross_entropy(cached()(outputs), targets)


def scaled_inputs(batch, scale=nn.Parameter(torch.ones(4))):  # noqa: B008
    return (batch[0] * scale,), batch[1]


PARTS = ("inputs", "model", "loss", "train", "step", "optimizers")


def fit(folder, callbacks=(), **given):
    task = tiny.task(**{name: part for name, part in given.items() if name in PARTS})
    options = {name: value for name, value in given.items() if name not in PARTS}
    config = tiny.config(max_steps=8, **options)
    return surestep.Trainer(task, config, run=folder, callbacks=callbacks).fit()


@pytest.mark.parametrize(
    ("loss", "path"),
    [
        (closing(), "In step 1, loss:head.weight"),
        (of_partial(), r"In step 1, loss.args\[0\].weight"),
        (Owner().loss, "In step 1, loss.__self__.scale"),
        (Owner(), "In step 1, loss.scale"),
        (of_global, "In step 1, loss:SCALE"),
        (of_plain_tensor(), "In step 2, loss:scale"),  # the first one may have been created
        (created, "In step 1, a parameter, which the forward or the loss creates or"),
        (of_cache, "In step 1, a parameter, which the forward .* or takes from a cache"),
        (of_default, r"In step 1, loss.__defaults__\[0\].weight"),
        (of_named_default, "In step 1, loss:head.weight"),
    ],
    ids=[
        *("lambda", "partial", "method", "object", "global", "tensor", "created"),
        *("cache", "default", "named default"),
    ],
)
def test_trainable_tensor_of_a_loss_is_named(tmp_path, loss, path):
    with pytest.raises(TaskError, match=f"{path}.* gets a gradient, and no optimizer has it"):
        fit(tmp_path / "r", loss=loss)


def test_trainable_tensor_of_the_inputs_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"In step 1, inputs.__defaults__\[0\], .* no optimizer"):
        fit(tmp_path / "r", inputs=scaled_inputs)


class Holding(nn.Module):
    """Holds trainable tensors where the model does not register them."""

    def __init__(self, **attributes):
        super().__init__()
        self.head = nn.Linear(4, 3)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        (kept,) = (value for name, value in vars(self).items() if name == "parts")
        value = next(iter(kept.values() if isinstance(kept, dict) else kept))
        return self.head(value(x) if callable(value) else x * value)


@pytest.mark.parametrize(
    ("attributes", "path", "remedy"),
    [
        ({"parts": [nn.Linear(4, 4)]}, r"1, model\.parts\[0\]\.weight", "Use nn.ModuleList"),
        ({"parts": (nn.Linear(4, 4),)}, r"1, model\.parts\[0\]\.weight", "Use nn.ModuleList"),
        ({"parts": {"a": nn.Linear(4, 4)}}, r"1, model\.parts\['a'\]\.weight", "nn.ModuleDict"),
        ({"parts": [nn.Parameter(torch.ones(4))]}, r"1, model\.parts\[0\]", "nn.ParameterList"),
        (
            {"parts": [torch.ones(4, requires_grad=True)]},
            r"2, model\.parts\[0\]",
            r"make it an nn.Parameter .* x.detach\(\).requires_grad_\(\)",
        ),
    ],
    ids=["list", "tuple", "dict", "parameters", "tensor"],
)
def test_trainable_tensor_that_the_model_does_not_register_is_named(
    tmp_path, attributes, path, remedy
):
    with pytest.raises(TaskError, match=f"In step {path}, .* no optimizer has it.* {remedy}"):
        fit(tmp_path / "r", model=Holding(**attributes))


class At(surestep.Callback):
    """Changes the model after step 4."""

    def __init__(self, change):
        self.change = change

    def on_step(self, state, result):
        if result.step == 4:
            self.change(state.model)


def replaced(model):
    model[3] = nn.Linear(8, 3)


def replaced_unnoticed(model):
    model._modules["3"] = nn.Linear(8, 3)


def grown(model):
    model.append(nn.Linear(3, 3))


def removed(model):
    del model[3]
    model.append(nn.Linear(8, 3).requires_grad_(False))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (replaced, r"5, model\.3\.weight, a parameter, replaced after step 4"),
        (grown, r"5, model\.4\.weight, a parameter, added after step 4"),
        (replaced_unnoticed, r"6, model\.3\.weight, a parameter, replaced after the optimizer was"),
    ],
)
def test_layer_that_is_added_while_training_is_named(tmp_path, change, what):
    logging = {"every": "5 steps"}
    with pytest.raises(TaskError, match=f"In step {what}.* no optimizer has it.* before you make"):
        fit(tmp_path / "r", [At(change)], logging=logging)
    assert surestep.Run(tmp_path / "r").status["status"] == "failed"


class Adding(surestep.Callback):
    """Adds a layer, and its parameters to the optimizer, after step 4."""

    def __init__(self, *, as_group):
        self.as_group = as_group

    def on_step(self, state, result):
        if result.step == 4:
            grown(state.model)
            parameters = list(state.model[-1].parameters())
            if self.as_group:
                state.optimizer.add_param_group({"params": parameters, "lr": 0.1})
            else:
                state.optimizer.param_groups[0]["params"] += parameters


@pytest.mark.parametrize(
    ("as_group", "options", "text"),
    [
        (True, {}, "has 3 parameter groups, and 2 when it was built"),
        (True, {"checkpoint": {"every": "4 steps", "async_save": False}}, "has 3 parameter groups"),
        (
            False,
            {},
            r"In step 5, model\.4\.weight, a parameter of shape \(3, 3\) is in an optimizer",
        ),
    ],
    ids=["group", "saved", "parameters"],
)
def test_parameters_that_are_added_to_an_optimizer_are_rejected(tmp_path, as_group, options, text):
    optim = {"name": "sgd", "lr": 0.1, "weight_decay": 0.0}
    with pytest.raises(TaskError, match=f"{text}.* Add all layers .*ParamGroup.'head', freeze="):
        fit(tmp_path / "r", [Adding(as_group=as_group)], optim=optim, **options)


@pytest.mark.parametrize("change", [replaced, grown])
def test_layer_that_is_added_in_an_own_loop_is_named(tmp_path, change):
    with tiny.prepare(tmp_path / "r") as session:
        steps = session.steps()
        next(steps)
        change(session.model)
        with pytest.raises(TaskError, match=r"In step 2, model\.\d\.weight, .* after step 1"):
            next(steps)


@pytest.mark.parametrize("change", [replaced, replaced_unnoticed, removed])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_save_after_a_layer_was_replaced_names_it(tmp_path, change, name):
    with pytest.raises(TaskError, match=r"At step 4, model\.3\.weight, which .* was replaced or"):
        fit(
            tmp_path / "r",
            [At(change)],
            optim={"name": name, "lr": 0.1},
            checkpoint={"every": "4 steps", "async_save": False},
        )


def test_leaves_that_a_checkpoint_of_activations_hides_are_not_checked_in_silence(tmp_path):
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            x = checkpoint(self.body, x.clone().requires_grad_(), use_reentrant=True)
            return self.head(x)

    with pytest.warns(UserWarning, match="not fully checked, .* Pass it use_reentrant=False"):
        fit(tmp_path / "r", model=Hiding())


def penalized(outputs, targets):
    """A loss whose graph has a tensor that the loss itself creates."""
    points = torch.randn_like(outputs).requires_grad_(True)
    return cross_entropy(outputs, targets) + (points * outputs).mean()


class Trainable(torch.utils.data.Dataset):
    """Samples that require a gradient."""

    def __init__(self):
        self.x, self.y = tiny.data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index].clone().requires_grad_(True), self.y[index]


def with_frozen():
    model = tiny.model()
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "parts",
    [{}, {"loss": penalized}, {"train": Trainable()}, {"model": with_frozen()}],
    ids=["plain", "created tensor", "inputs", "frozen"],
)
def test_correct_program_trains(tmp_path, parts):
    assert fit(tmp_path / "r", **parts).status["status"] == "finished"


def test_change_is_noticed_without_a_check_of_every_step(tmp_path, monkeypatch):
    checked, check = [], UnheldLeafCheck.check

    def note(self, *args):
        checked.append(self._state.progress.step + 1)
        check(self, *args)

    monkeypatch.setattr(UnheldLeafCheck, "check", note)

    def change(model):
        nn.Linear(3, 3)  # of no model
        model.more = nn.Identity()

    fit(tmp_path / "r", [At(change)])
    assert checked == [1, 4, 5, 7]  # 3 and 6 end an epoch, with a log point


def test_tensor_of_a_manual_step_is_named_at_the_first_pass_that_uses_it(tmp_path):
    scale = nn.Parameter(torch.ones(3))

    def step(manual_step):
        for name in ("0", "3")[: manual_step.index + 1]:
            for micro in manual_step.micro_batches(name):
                x, y = micro.args
                outputs = manual_step.model(x) * (scale if name == "3" else 1.0)
                manual_step.backward(cross_entropy(outputs, y), micro)
            manual_step.step(name)

    parts = {
        "loss": None,
        "step": step,
        "optimizers": {"0": surestep.Optim(), "3": surestep.Optim()},
    }
    with pytest.raises(TaskError, match=r"In step 2, step:scale, .* no optimizer has it"):
        fit(tmp_path / "r", **parts)
