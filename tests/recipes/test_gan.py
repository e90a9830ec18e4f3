import pytest
import torch

import surestep
from surestep.recipes import gan
from surestep.recipes.load import load

REAL = gan.images()[0].flatten(1)


def train(folder, callbacks=(), **options):
    recipe = load("gan")
    config = recipe.config.replace_options({"logging.progress": "quiet", **options})
    task = recipe.build({"width": 32}, config)
    return surestep.Trainer(task, config, run=folder, callbacks=list(callbacks))


def test_training_reduces_the_distance_to_real_digits(tmp_path):
    options = {"max_steps": 200, "optim.lr": 3e-3, "average.decay": 0.9}
    torch.manual_seed(0)
    with torch.no_grad():
        before = float(gan.energy_distance(gan.WGAN(32)(REAL[1500:]), REAL[1500:]))
    trainer = train(tmp_path / "r", **options)
    trainer.fit()
    assert trainer.evaluate("test")["test/loss"] < before / 2
    trainer.session.close()


def test_generator_is_updated_once_in_five_steps(tmp_path):
    moves = []

    class Look(surestep.Callback):
        def on_step(self, state, result):
            weight = state.model.generator[0].weight.detach().clone()
            moves.append(not moves or not torch.equal(weight, seen[-1]))
            seen.append(weight)

    seen = [torch.zeros(0)]
    train(tmp_path / "r", [Look()], max_steps=11).fit()
    assert [step for step in range(1, 11) if moves[step]] == [4, 9]


def test_gradient_penalty_keeps_the_critic_slope_near_one(tmp_path):
    trainer = train(tmp_path / "r", max_steps=100, **{"optim.lr": 3e-3})
    trainer.fit()
    between = (REAL[:200] + torch.rand(200, 64)).div(2).requires_grad_()
    critic = trainer.session.model.critic
    (slope,) = torch.autograd.grad(critic(between).sum(), between)
    assert 0.5 < float(slope.norm(dim=1).mean()) < 1.5


def test_energy_distance_is_computed_over_every_pair():
    a, b = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    across = sum(float((x - y).norm()) for x in a for y in b) / 49
    within = [sum(float((x - y).norm()) for x in each for y in each) / 42 for each in (a, b)]
    assert float(gan.energy_distance(a, b)) == pytest.approx(2 * across - sum(within), rel=1e-5)


def test_energy_distance_separates_digits_from_shuffled_pixels():
    test = REAL[1200:]
    assert abs(float(gan.energy_distance(REAL[:597], test))) < 0.005
    generator = torch.Generator().manual_seed(0)
    order = [torch.randperm(597, generator=generator) for _ in range(64)]
    pixels = torch.stack([REAL[:597, i][order[i]] for i in range(64)], dim=1)
    assert float(gan.energy_distance(pixels, test)) > 0.015
    assert float(gan.energy_distance(torch.rand(597, 64), test)) > 1


def test_splits_share_no_images():
    task = gan.task(width=4)
    parts = [part[0] for part in (task.train, task.val, task.test)]
    assert [len(part) for part in parts] == [1200, 300, 297]
    assert torch.equal(torch.cat(parts), REAL)


def test_digits_of_the_averaged_model_are_printed_at_the_end(tmp_path, capsys):
    train(tmp_path / "r", gan.callbacks, max_steps=1).fit()
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [5 * 16 + 4 * 2] * 8


def test_sketch_shades_follow_the_pixels():
    image = torch.zeros(1, 64)
    image[0, 0], image[0, 63] = 1, 0.5
    lines = gan.sketch(image).split("\n")
    assert lines[0] == "@@" + " " * 14
    assert lines[7] == " " * 14 + 2 * gan.SHADES[4]
