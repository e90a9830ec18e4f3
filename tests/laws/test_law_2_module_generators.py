"""Laws 2 and 4 for models and losses that draw from their own generator."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from surestep.engine.own_generators import OwnGenerators
from tests.laws.support.tasks import assert_same, session_of, snapshot, train
from tests.laws.test_law_2_global_generators import OPTIONS, Noisy, check_draws, task_of

MAKERS = {
    "numpy": lambda: np.random.default_rng(0),
    "numpy, old": lambda: np.random.RandomState(0),
    "python": lambda: random.Random(0),
    "torch": lambda: torch.Generator().manual_seed(0),
}


def draw_from(generator):
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator))
    return float(generator.random() if hasattr(generator, "random") else generator.rand())


class Keeping(Noisy):
    """Draws from its own generator, in evaluations too."""

    def __init__(self, make, *, late=False):
        super().__init__(lambda: draw_from(self.generator()), evaluates=True)
        self.make = make
        self.rng = None if late else make()

    def generator(self):
        if self.rng is None:
            self.rng = self.make()
        return self.rng


class KeepingLoss(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.rng = make()

    def forward(self, outputs, targets):
        scale = 1 + draw_from(self.rng)
        return nn.functional.cross_entropy(outputs, targets) * scale


@pytest.mark.parametrize("kind", MAKERS)
def test_draws_from_a_generator_of_the_model_follow_from_the_position(folder, kind):
    check_draws(folder, lambda: task_of(Keeping(MAKERS[kind])))


def test_draws_from_a_generator_of_the_loss_follow_from_the_position(folder):
    def make():
        return task_of(Noisy(lambda: 0.0), KeepingLoss(MAKERS["numpy"]), loss_is_separable=False)

    check_draws(folder, make)


def test_draws_from_a_generator_in_the_closure_of_a_loss_follow_from_the_position(folder):
    def make():
        rng = MAKERS["numpy"]()

        def loss(outputs, targets):
            return nn.functional.cross_entropy(outputs, targets) * (1 + rng.random())

        return task_of(Noisy(lambda: 0.0), loss, loss_is_separable=False)

    check_draws(folder, make)


class TwoHeads(Noisy):
    """Returns outputs for two losses."""

    def __init__(self):
        super().__init__(lambda: 0.0)

    def forward(self, x):
        outputs = super().forward(x)
        return {"a": outputs, "b": outputs}


def two_losses_of_one_class():
    return {name: KeepingLoss(MAKERS["numpy"]) for name in "ab"}


def two_lambdas():
    def of(rng):
        return lambda outputs, targets: (
            nn.functional.cross_entropy(outputs, targets) * (1 + rng.random())
        )

    return {name: of(MAKERS["python"]()) for name in "ab"}


@pytest.mark.parametrize("losses", [two_losses_of_one_class, two_lambdas])
def test_draws_of_two_losses_with_one_name_follow_from_the_position(folder, losses):
    def split(batch):
        x, y = batch
        return x, {"a": y, "b": y}

    def make():
        return task_of(TwoHeads(), losses(), inputs=split, loss_is_separable=False)

    check_draws(folder, make)


def test_draws_of_two_modules_with_one_class_name_follow_from_the_position(folder):
    def layer():
        rng = MAKERS["numpy"]()

        class Layer(nn.Module):
            def forward(self, x):
                return x * (1 + rng.random())

        return Layer()

    def make():
        torch.manual_seed(1)
        return task_of(nn.Sequential(layer(), layer(), nn.Linear(10, 3)))

    check_draws(folder, make)


def test_draws_of_a_manual_step_follow_from_the_position(folder):
    def make():
        rng = MAKERS["python"]()

        def step(manual_step):
            for micro in manual_step.micro_batches():
                loss = nn.functional.cross_entropy(manual_step.model(*micro.args), micro.targets)
                manual_step.backward(loss * (1 + rng.random()), micro)
            manual_step.step("model")

        return task_of(Noisy(lambda: 0.0), step=step)

    check_draws(folder, make)


def test_every_evaluation_draws_the_same_numbers(folder):
    with session_of(task_of(Keeping(MAKERS["numpy"])), folder(), **OPTIONS) as session:
        assert session.evaluate() == session.evaluate()


GLOBAL = torch.Generator()


def draw_from_global(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) * (1 + draw_from(GLOBAL))


@pytest.mark.parametrize("loss", [draw_from_global, {"a": draw_from_global}])
def test_evaluation_seeds_the_generator_of_a_loss_function(folder, loss):
    several = isinstance(loss, dict)
    model = TwoHeads() if several else Noisy(lambda: 0.0)
    inputs = (lambda batch: (batch[0], {"a": batch[1]})) if several else None
    task = task_of(model, loss, inputs=inputs, loss_is_separable=False)
    with session_of(task, folder(), **OPTIONS) as session:
        assert session.evaluate() == session.evaluate()


def test_generators_of_one_model_draw_different_numbers(folder):
    drawn = []

    class Two(Noisy):
        def __init__(self):
            super().__init__(self.both)
            self.one, self.other = np.random.default_rng(0), np.random.default_rng(0)

        def both(self):
            drawn.append((self.one.random(), self.other.random()))
            return 0.0

    train(task_of(Two()), folder(), **{**OPTIONS, "max_steps": 2})
    assert len(set(drawn)) == len(drawn) == 4
    assert all(one != other for one, other in drawn)


def test_generator_made_in_the_first_step_causes_a_warning(folder):
    class Late(Keeping):
        def forward(self, x):
            if not self.training:  # the first-batch checks run in eval mode
                return self.last(self.first(x))
            return super().forward(x)

    with pytest.warns(UserWarning, match=r"\.rng \(Generator\) was created in the first step"):
        train(task_of(Late(MAKERS["numpy"], late=True)), folder(), **OPTIONS)


def test_generator_that_a_loss_of_a_deep_model_makes_in_the_first_step_causes_a_warning(folder):
    class LateLoss(KeepingLoss):
        def __init__(self):
            super().__init__(lambda: None)

        def forward(self, outputs, targets):
            if outputs.requires_grad and self.rng is None:
                self.rng = MAKERS["numpy"]()
            return nn.functional.cross_entropy(outputs, targets)

    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(100)))
    with pytest.warns(UserWarning, match=r"loss\.rng \(Generator\) was created in the first step"):
        train(task_of(model, LateLoss()), folder(), **{**OPTIONS, "max_steps": 2})


def test_generator_that_takes_no_seed_causes_a_warning(folder):
    with pytest.warns(UserWarning, match=r"model\.rng \(SystemRandom\) takes no seed"):
        train(task_of(Keeping(random.SystemRandom)), folder(), **OPTIONS)


@pytest.mark.parametrize("kind", MAKERS)
def test_activation_checkpointing_with_a_generator_of_the_model_is_rejected(folder, kind):
    model = nn.Sequential(Keeping(MAKERS[kind]), nn.Linear(3, 3))
    with pytest.raises(TaskError, match=r"may draw different numbers from model\.0\.rng"):
        train(task_of(model), folder(), activation_checkpointing="1", **OPTIONS)


def test_activation_checkpointing_works_with_a_generator_of_the_loss(folder):
    def end(choice):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))
        task = task_of(model, KeepingLoss(MAKERS["numpy"]), loss_is_separable=False)
        return snapshot(train(task, folder(), activation_checkpointing=choice, **OPTIONS))

    assert_same(end("0"), end("off"))


def test_seed_of_a_generator_follows_from_the_position(folder):
    drawn = []

    class Drawing(Noisy):
        def __init__(self):
            super().__init__(lambda: drawn.append(self.rng.random()) or 0.0)
            self.rng = random.Random(0)

    train(task_of(Drawing()), folder(), **{**OPTIONS, "max_steps": 1})
    digest = surestep.derive_seed("model", 7, 0, 0)
    salt = OwnGenerators(("model.rng", random.Random(0))).found[0].salt
    assert drawn[0] == random.Random(digest ^ salt).random()
