"""Laws 2 and 3 for parameter groups: freezing, unfreezing and layer-wise rates.

The plain loop adds the unfrozen parameters with `add_param_group` at the step that trains them
first.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

import surestep
from surestep.trainer.session import Session
from tests.laws.support.plain import distance, order_of, seed_of
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot, train, with_batchnorm

STEPS, BATCH, SWITCH = 12, 8, 5
ADAMW = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1}
SGD = {"name": "sgd", "lr": 1e-1, "momentum": 0.9, "weight_decay": 0.1}


def adamw(groups):
    return torch.optim.AdamW(groups, lr=1e-2, fused=True)


def sgd(groups):
    return torch.optim.SGD(groups, lr=1e-1, momentum=0.9, fused=True)


def two_groups(parameters, **options):
    parameters = list(parameters)
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    return [
        {"params": matrices, "weight_decay": 0.1, **options},
        {"params": others, "weight_decay": 0.0, **options},
    ]


def batches(x, y, steps):
    """Yield the batches of all epochs, and seed the model's generator for each."""
    step = 0
    for epoch in range(steps):
        order = order_of(len(x), 0, epoch)
        for start in range(0, len(x), BATCH):
            if step == steps:
                return
            torch.manual_seed(seed_of(f"model 0 {step} {start}"))
            taken = order[start : start + BATCH]
            yield x[taken], y[taken]
            step += 1


def by_hand(model, make, *, steps=STEPS):
    """Train the head alone, then from step SWITCH on the body and its BatchNorm too."""
    body, head = model[0], model[2]
    body.requires_grad_(False)
    optimizer = make(two_groups(head.parameters()))
    x, y = rows()
    for step, (inputs, targets) in enumerate(batches(x, y, steps)):
        model.train()
        if step == SWITCH:
            body.requires_grad_(True)
            for group in two_groups(body.parameters()):
                optimizer.add_param_group(group)
        for module in body.modules():
            if step < SWITCH and isinstance(module, nn.BatchNorm1d):
                module.eval()
        optimizer.zero_grad()
        (F.cross_entropy(model(inputs), targets, reduction="sum") / len(inputs)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def task(model=None):
    return surestep.Task(model or with_batchnorm(), nn.CrossEntropyLoss(), rows())


def options(optim, freeze=f"0 freeze='{SWITCH} steps'", **more):
    groups = {"groups": (freeze,)}
    return {"max_steps": STEPS, "batch_size": BATCH, "optim": {**optim, **groups}, **more}


def check_switch(folder, optim=ADAMW, make=adamw, nonfinite="raise"):
    """Compare weights and running statistics with those of a plain loop."""
    ours = train(task(), folder(), **options(optim, on_nonfinite=nonfinite)).model
    theirs = by_hand(with_batchnorm(), make).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize(("optim", "make"), [(ADAMW, adamw), (SGD, sgd)], ids=["adamw", "sgd"])
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_unfreezing_equals_a_new_group_at_that_step(optim, make, nonfinite, folder):
    check_switch(folder, optim, make, nonfinite)


def without_dropout():
    model = with_batchnorm()
    model[0][2].p = 0.0
    return model


def test_frozen_modules_do_not_change_until_the_switch(folder):
    with session_of(task(), folder(), **options(ADAMW)) as session:
        start = {name: value.clone() for name, value in session.model.state_dict().items()}
        for result in session.steps():
            now = session.model.state_dict()
            moved = {name for name in now if not torch.equal(now[name], start[name])}
            held = {id(parameter) for parameter in session.model[0].parameters()}
            known = held & {id(parameter) for parameter in session.optimizer.state}
            body = {name for name in moved if name.startswith("0.")}
            if result.step <= SWITCH:
                assert not body
                assert not known
                assert all(name.startswith("2.") for name in result.norms.names)
            else:
                assert {"0.0.weight", "0.1.weight", "0.1.running_mean"} <= body
                assert known == held
                assert len(result.norms.names) == 6


def stop_and_resume(folder, stop: int) -> Session:
    path = folder()
    with session_of(task(), path, **options(ADAMW)) as session:
        for result in session.steps():
            if result.step == stop:
                session.save()
                break
    return train(task(), path, **options(ADAMW))


@pytest.mark.parametrize("stop", [SWITCH - 1, SWITCH, SWITCH + 1])
def test_run_stopped_near_the_switch_resumes_bit_for_bit(stop, folder):
    never = train(task(), folder(), **options(ADAMW))
    assert_same(snapshot(never), snapshot(stop_and_resume(folder, stop)))


def test_epochs_of_freezing_are_converted_to_steps(folder):
    epochs = train(task(), folder(), **options(ADAMW, "0 freeze='1 epoch'"))
    steps = train(task(), folder(), **options(ADAMW, "0 freeze='7 steps'"))
    assert epochs.plan.steps_per_epoch == 7
    assert_same(snapshot(epochs), snapshot(steps))


def check_layers(folder):
    """Compare with a plain loop that sets the rate of each layer."""

    def deep():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
        )

    optim = {**ADAMW, "layerwise_lr_decay": 0.7}
    ours = train(task(deep()), folder(), max_steps=STEPS, batch_size=BATCH, optim=optim).model
    model = deep()
    rates = {0: 1e-2 * 0.7**2, 2: 1e-2 * 0.7, 4: 1e-2}
    groups = [
        group for i, lr in rates.items() for group in two_groups(model[i].parameters(), lr=lr)
    ]
    optimizer = adamw(groups)
    x, y = rows()
    for inputs, targets in batches(x, y, STEPS):
        optimizer.zero_grad()
        (F.cross_entropy(model(inputs), targets, reduction="sum") / len(inputs)).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert distance(ours, model) == 0


def test_layerwise_decay_equals_rates_set_by_hand(folder):
    check_layers(folder)


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_the_switch_takes_effect_in_a_compiled_model(how, folder):
    held = options(ADAMW)
    eager, inner = without_dropout(), without_dropout()
    train(task(eager), folder(), **held)
    if how == "wrapped":
        model = torch.compile(inner, backend="aot_eager")
    else:
        model = inner
        model.compile(backend="aot_eager")
    train(task(model), folder(), **held)
    assert distance(eager, inner) <= 1e-6
    assert not torch.equal(inner[0][0].weight, without_dropout()[0][0].weight)
    torch.testing.assert_close(eager[0][1].running_mean, inner[0][1].running_mean)
