import pytest
import torch

import surestep
from surestep.recipes import gan
from surestep.recipes.load import load

REAL = gan.images()[0].flatten(1)


def train(folder, callbacks=(), **said):
    recipe = load("gan")
    config = recipe.config.replace_options({"logging.progress": "quiet", **said})
    task = recipe.build({"width": 32}, config)
    return surestep.Trainer(task, config, run=folder, callbacks=list(callbacks))


def test_what_is_drawn_comes_nearer_to_digits(tmp_path):
    said = {"max_steps": 200, "optim.lr": 3e-3, "average.decay": 0.9}
    torch.manual_seed(0)
    with torch.no_grad():
        before = float(gan.energy_distance(gan.WGAN(32)(REAL[1500:]), REAL[1500:]))
    trainer = train(tmp_path / "r", **said)
    trainer.fit()
    assert trainer.evaluate("test")["test/loss"] < before / 2
    trainer.session.close()


def test_the_generator_moves_once_in_five_turns(tmp_path):
    moves = []

    class Look(surestep.Callback):
        def on_step(self, state, result):
            weight = state.model.generator[0].weight.detach().clone()
            moves.append(not moves or not torch.equal(weight, seen[-1]))
            seen.append(weight)

    seen = [torch.zeros(0)]
    train(tmp_path / "r", [Look()], max_steps=11).fit()
    assert [step for step in range(1, 11) if moves[step]] == [4, 9]


def test_the_penalty_holds_the_critics_slope_near_one(tmp_path):
    trainer = train(tmp_path / "r", max_steps=100, **{"optim.lr": 3e-3})
    trainer.fit()
    between = (REAL[:200] + torch.rand(200, 64)).div(2).requires_grad_()
    critic = trainer.session.model.critic
    (slope,) = torch.autograd.grad(critic(between).sum(), between)
    assert 0.5 < float(slope.norm(dim=1).mean()) < 1.5


def test_the_distance_is_that_of_every_pair():
    a, b = torch.randn(2, 7, 3, generator=torch.Generator().manual_seed(0))
    across = sum(float((x - y).norm()) for x in a for y in b) / 49
    within = [sum(float((x - y).norm()) for x in each for y in each) / 42 for each in (a, b)]
    assert float(gan.energy_distance(a, b)) == pytest.approx(2 * across - sum(within), rel=1e-5)


def test_the_distance_tells_digits_from_what_resembles_them():
    test = REAL[1200:]
    assert abs(float(gan.energy_distance(REAL[:597], test))) < 0.005
    generator = torch.Generator().manual_seed(0)
    order = [torch.randperm(597, generator=generator) for _ in range(64)]
    pixels = torch.stack([REAL[:597, i][order[i]] for i in range(64)], dim=1)
    assert float(gan.energy_distance(pixels, test)) > 0.015
    assert float(gan.energy_distance(torch.rand(597, 64), test)) > 1


def test_no_image_is_in_two_parts():
    task = gan.task(width=4)
    parts = [part[0] for part in (task.train, task.val, task.test)]
    assert [len(part) for part in parts] == [1200, 300, 297]
    assert torch.equal(torch.cat(parts), REAL)


def test_digits_of_the_average_are_printed_at_the_end(tmp_path, capsys):
    train(tmp_path / "r", gan.callbacks, max_steps=1).fit()
    lines = capsys.readouterr().out.splitlines()
    assert [len(line) for line in lines] == [5 * 16 + 4 * 2] * 8


def test_a_sketch_is_as_dark_as_its_image():
    image = torch.zeros(1, 64)
    image[0, 0], image[0, 63] = 1, 0.5
    lines = gan.sketch(image).split("\n")
    assert lines[0] == "@@" + " " * 14
    assert lines[7] == " " * 14 + 2 * gan.SHADES[4]
