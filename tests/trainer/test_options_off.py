"""What a run does if an option is switched off."""

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.record.run import Run
from tests import tiny


def steep():
    """Data whose gradients have a norm above 1."""
    x, y = tiny.data()
    return 30 * x, (y + 1) % 3


def plain_sgd(steps, clip):
    """Train in a plain loop on one full batch."""
    net, (x, y) = tiny.model(), steep()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
    return net


def trained(folder, **options):
    net = tiny.model()
    config = surestep.Config(
        epochs=3,
        batch_size=20,
        optim={"name": "sgd", "lr": 0.5, "weight_decay": 0},
        data={"shuffle": False},
        logging={"progress": "quiet"},
        **options,
    )
    surestep.Trainer(tiny.task(model=net, train=steep()), config, run=folder).fit()
    return net


@pytest.mark.parametrize("off", [None, 0, False, "off"])
def test_unclipped_norm_gives_the_weights_of_a_plain_loop(tmp_path, off):
    found, plain = trained(tmp_path, max_grad_norm=off), plain_sgd(3, None)
    for a, b in zip(found.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_by_default(tmp_path):
    found, plain = trained(tmp_path), plain_sgd(3, None)
    clipped = plain_sgd(3, 1.0)
    assert not torch.allclose(found[0].weight, plain[0].weight, rtol=1e-3)
    torch.testing.assert_close(found[0].weight, clipped[0].weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("before", "now"), [({}, {"max_grad_norm": None}), ({}, {"clip_value": None})]
)
def test_option_switched_off_is_compared_on_resume(tmp_path, before, now):
    with surestep.prepare(tiny.task(), tiny.config(**before), run=tmp_path) as session:
        next(session.steps())
        session.save()
    assert "max_grad_norm" not in Run(tmp_path).config["config"]
    if "clip_value" in now:  # it was off before too
        surestep.prepare(tiny.task(), tiny.config(**now), run=tmp_path).close()
    else:
        with pytest.raises(surestep.SurestepError, match=r"max_grad_norm +1.0 +-> +none"):
            surestep.prepare(tiny.task(), tiny.config(**now), run=tmp_path)


def test_off_is_null_in_the_saved_config_and_the_run_resumes(tmp_path):
    with surestep.prepare(tiny.task(), tiny.config(max_grad_norm=None), run=tmp_path) as session:
        next(session.steps())
        session.save()
    assert Run(tmp_path).config["config"]["max_grad_norm"] is None
    surestep.prepare(tiny.task(), tiny.config(max_grad_norm="off"), run=tmp_path).close()


def test_run_with_evaluation_off_evaluates_only_at_the_end(tmp_path):
    task = tiny.task(val=tiny.data(8, seed=1))
    config = tiny.config(epochs=3, validation={"every": "off"}, logging={"progress": "quiet"})
    run = surestep.Trainer(task, config, run=tmp_path).fit()
    assert [each["event"] for each in run.events()].count("evaluation") == 1


def test_run_with_checkpoints_off_saves_only_the_last(tmp_path):
    config = tiny.config(epochs=3, checkpoint={"every": None}, logging={"progress": "quiet"})
    run = surestep.Trainer(tiny.task(), config, run=tmp_path).fit()
    assert len(list((run.path / "checkpoints").iterdir())) == 1


def test_run_with_log_points_off_logs_at_the_end_of_epochs(tmp_path):
    config = tiny.config(epochs=3, batch_size=2, logging={"every": 0, "progress": "quiet"})
    run = surestep.Trainer(tiny.task(), config, run=tmp_path).fit()
    assert [each["event"] for each in run.events()].count("steps") == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"early_stop": 3, "validation": {"every": "off"}},
            "requires validation.every, but validation.every is off",
        ),
        ({"on_spike": "rollback", "checkpoint": {"every": "off"}}, "needs a checkpoint to return"),
    ],
)
def test_option_that_needs_an_option_that_is_off_is_rejected(options, sentence):
    task = tiny.task(val=tiny.data(8, seed=1))
    with pytest.raises(ConfigError, match=sentence):
        surestep.prepare(task, tiny.config(**options), run=None)


def test_percentage_of_the_run_is_converted_to_steps():
    plan = tiny.plan({"val": tiny.data(8)}, max_steps=40, validation={"every": "25%"})
    assert str(plan.plan.validation_every) == "10 steps"
