"""Random numbers: of the place in the run alone, and different for each library and purpose."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, StackDataset, Subset

import surestep
from surestep.recipes.load import load
from tests.twice.compare import (
    assert_same,
    plain_config,
    prepare,
    seed_all,
    seed_of,
    train,
    weights,
)

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 1).double()


def train_plain(net, batches, before_forward=lambda step, first: None):
    """A loop by hand with SGD; returns the weights."""
    optimizer, first, size = torch.optim.SGD(net.parameters(), lr=0.1), 0, 7
    for step, (x, y) in enumerate(batches):
        before_forward(step, first)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        first = 0 if len(x) < size else first + size
    return weights(net)


class Noisy(Dataset):
    """Samples with noise of all three libraries, drawn when they are read."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return X[index] + float(torch.rand(())) + np.random.rand() + random.random(), Y[index]


def noisy_sample(index, *place):
    seed_all("load", *place)
    return X[index] + float(torch.rand(())) + np.random.rand() + random.random(), Y[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_is_that_of_a_plain_script_with_the_documented_seeds(workers):
    batches = []
    for epoch in range(2):
        order = torch.randperm(
            N, generator=torch.Generator().manual_seed(seed_of("order", 5, epoch))
        )
        samples = [noisy_sample(int(i), 5, epoch, n, "train") for n, i in enumerate(order)]
        for first in range(0, N, 7):
            columns = zip(*samples[first : first + 7], strict=True)
            batches.append(tuple(torch.stack(column) for column in columns))
    plain = train_plain(linear(), batches)

    net = linear()
    config = plain_config(
        epochs=2, batch_size=7, seed=5, data={"shuffle": True, "num_workers": workers}
    )
    train(surestep.Task(net, nn.MSELoss(), train=Noisy()), config)
    assert_same(plain, weights(net))


def test_dropout_is_that_of_a_plain_script_with_the_documented_seeds():
    def build():
        torch.manual_seed(3)
        layers = nn.Linear(4, 11), nn.Tanh(), nn.Dropout(0.5), nn.Linear(11, 1)
        return nn.Sequential(*layers).double()

    batches = [(X[i : i + 7], Y[i : i + 7]) for i in range(0, N, 7)] * 2

    def seed(step, first):
        torch.manual_seed(seed_of("model", 2, step, first))

    plain = train_plain(build(), batches, seed)
    net = build()
    train(
        surestep.Task(net, nn.MSELoss(), train=(X, Y)), plain_config(epochs=2, batch_size=7, seed=2)
    )
    assert_same(plain, weights(net), exact=True)


class DropsByNumpy(nn.Module):
    """A model that hides features by numpy, an odd number of gaussians, and Python."""

    def __init__(self):
        super().__init__()
        self.linear = linear()

    def forward(self, x):
        if self.training:
            x = x * (np.random.rand() < 0.7) + np.random.randn() * random.random()
        return self.linear(x)


def test_numpy_and_python_in_a_model_are_seeded_as_documented():
    batches = [(X[i : i + 7], Y[i : i + 7]) for i in range(0, N, 7)] * 2

    def seed(step, first):
        seed_all("model", 0, step, first)

    plain = train_plain(DropsByNumpy(), batches, seed)
    net = DropsByNumpy()
    train(surestep.Task(net, nn.MSELoss(), train=(X, Y)), plain_config(epochs=2, batch_size=7))
    assert_same(plain, weights(net))


def test_student_built_by_a_function_is_not_its_teacher():
    def build():
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    torch.manual_seed(0)
    teacher = build()
    target = teacher(X).detach()
    task = surestep.Task(build, nn.MSELoss(), train=(X, target), val=(X, target))
    session = prepare(task, plain_config(max_steps=1, batch_size=7, seed=0))
    with torch.no_grad():
        plain = float(nn.functional.mse_loss(session.model(X), target))
    assert plain > 0.01
    assert_same(plain, session.evaluate()["val/loss"])


def test_teacher_made_in_a_recipe_is_not_the_student_of_its_model_function(tmp_path):
    recipe = tmp_path / "teacher_and_student.py"
    recipe.write_text(
        "import torch, surestep\nfrom torch import nn\n"
        "config = surestep.Config(max_steps=1, batch_size=5)\n"
        "def build(): return nn.Linear(4, 3)\n"
        "def task():\n"
        "    teacher, x = build(), torch.randn(11, 4)\n"
        "    y = teacher(x).detach()\n"
        "    return surestep.Task(build, nn.MSELoss(), train=(x, y), val=(x, y))\n"
    )
    loaded = load(str(recipe))
    task = loaded.build({}, loaded.config)
    assert prepare(task, plain_config(max_steps=1, batch_size=5)).evaluate()["val/loss"] > 0.01


class Synthetic(Dataset):
    """Samples that are drawn when they are read, whatever their index is."""

    def __init__(self, kept):
        self.kept = kept

    def __len__(self):
        return 23

    def __getitem__(self, index):
        x = torch.randn(4, dtype=torch.float64)
        self.kept.append(x)
        return x, x[:1]


def test_random_validation_set_shares_no_sample_with_training_and_is_the_same_each_time():
    kept = {"train": [], "near": [], "far": []}
    sets = {name: Synthetic(rows) for name, rows in kept.items()}
    task = surestep.Task(
        linear(), nn.MSELoss(), train=sets["train"], val={n: sets[n] for n in ("near", "far")}
    )
    config = plain_config(
        epochs=2, batch_size=5, data={"num_workers": 0}, doctor={"check_data": "off"}
    )
    session, rounds = prepare(task, config), []
    for rows in kept.values():
        rows.clear()  # of the checks
    for result in session.steps():
        if result.step in (2, 7):
            session.evaluate()
            rounds.append([torch.stack(kept[name]) for name in ("near", "far")])
            kept["near"].clear(), kept["far"].clear()
    assert_same(rounds[0], rounds[1], exact=True)
    drawn = [tuple(row.tolist()) for row in [*kept["train"], *rounds[0][0], *rounds[0][1]]]
    assert len(drawn) == 4 * 23
    assert len(set(drawn)) == len(drawn)


def hide(batch):
    """Hide some inputs."""
    return batch[0] * (torch.rand(batch[0].shape) > 0.3), batch[1]


def run_with(inputs, run, stops=(20,), **more):
    """Train in processes that end at these steps; return the weights."""
    for stop in stops:
        net = linear()
        task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=(X, Y), inputs=inputs)
        config = plain_config(max_steps=stop, batch_size=7, **more)
        surestep.Trainer(task, config, run=run).fit()
    return weights(net)


def test_inputs_that_draw_are_those_of_a_plain_script_with_the_documented_seeds():
    batches = []
    for epoch in range(2):
        for first in range(0, N, 7):
            torch.manual_seed(seed_of("inputs", 0, epoch, first, "train"))
            batches.append(hide((X[first : first + 7], Y[first : first + 7])))
    plain = train_plain(linear(), batches)
    assert_same(plain, run_with(hide, "runs/a", stops=(14,)))


def test_inputs_that_draw_are_the_same_after_a_resume_and_with_more_evaluations():
    plain = run_with(hide, "runs/a", validation={"every": 20})
    assert_same(plain, run_with(hide, "runs/b", validation={"every": 3}), exact=True)
    resumed = run_with(hide, "runs/c", stops=(9, 20), validation={"every": 20})
    assert_same(plain, resumed, exact=True)


class Hides:
    """Hides some inputs by its own generator."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, batch):
        return batch[0] * torch.from_numpy(self.rng.random(batch[0].shape) > 0.3), batch[1]


def test_inputs_with_a_custom_generator_are_the_same_after_a_resume():
    plain = run_with(Hides(), "runs/a")
    run_with(Hides(), "runs/b", stops=(9,))
    assert_same(plain, run_with(Hides(), "runs/b"), exact=True)


class Jitters:
    """A batch transform with its own generator."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, x, y):
        return x + torch.from_numpy(self.rng.random(x.shape)), y


def test_batch_transform_with_a_custom_generator_is_the_same_after_a_resume():
    def run(folder, stops):
        for stop in stops:
            net = linear()
            task = surestep.Task(net, nn.MSELoss(), train=(X, Y), batch_transform=Jitters())
            config = plain_config(max_steps=stop, batch_size=7)
            surestep.Trainer(task, config, run=folder).fit()
        return weights(net)

    assert_same(run("runs/a", (20,)), run("runs/b", (9, 20)), exact=True)


def test_random_inputs_of_own_batches_differ_from_step_to_step():
    seen = []

    def inputs(batch):
        hidden = hide(batch)
        seen.append(hidden[0])
        return hidden

    task = surestep.Task(linear(), nn.MSELoss(), train=(X, Y), inputs=inputs)
    session = prepare(task, plain_config(max_steps=9, batch_size=7))
    seen.clear()
    for _ in range(3):
        session.train_step([(X[:7], Y[:7])])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def nested_subset():
    return Subset(Subset(Noisy(), list(range(N))), list(range(N)))


class NoisyInputs(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return X[index] + torch.rand(())


class Targets(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return Y[index]


class Fold(Subset):
    """A subset with a name, as people derive it."""


MAKERS = {
    "subset of a subset": nested_subset,
    "derived subset": lambda: Fold(Noisy(), list(range(N))),
    "stack": lambda: StackDataset(NoisyInputs(), Targets()),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_augmentation_does_not_depend_on_the_micro_batch_size(make):
    found = []
    for size in (7, 3):
        net = linear()
        config = plain_config(
            epochs=1, batch_size=7, micro_batch_size=size, data={"num_workers": 0}
        )
        train(surestep.Task(net, nn.MSELoss(), train=make()), config)
        found.append(weights(net))
    assert_same(*found)


class NoisyInEvaluation(nn.Module):
    """A model that samples in evaluation too, as a VAE or a dropout that stays on."""

    def __init__(self):
        super().__init__()
        self.linear, self.drawn = linear(), []

    def forward(self, x):
        noise = torch.randn(len(x), 1, dtype=torch.float64)
        if not self.training:
            self.drawn.append(noise)
        return self.linear(x) + noise


def test_noise_in_evaluation_differs_between_sets_and_is_the_same_each_time():
    net = NoisyInEvaluation()
    sets = {"one": (X[:13], Y[:13]), "two": (X[:13], Y[:13])}
    session = prepare(
        surestep.Task(net, nn.MSELoss(), train=(X, Y), val=sets),
        plain_config(max_steps=3, batch_size=7, validation={"batch_size": 13}),
    )
    rounds = []
    for _ in range(2):
        net.drawn.clear()
        metrics = session.evaluate()
        rounds.append(list(net.drawn))
        with torch.no_grad():
            for name, noise in zip(sets, net.drawn, strict=True):
                plain = nn.functional.mse_loss(net.linear(X[:13]) + noise, Y[:13])
                assert_same(float(plain), metrics[f"{name}/loss"])
    assert_same(rounds[0], rounds[1], exact=True)
    assert not torch.equal(*rounds[0])


def test_another_validation_set_on_resume_starts_a_new_best():
    far = X[:17], Y[:17] + 100
    for val, stop in (((X[:17], Y[:17]), 4), (far, 8)):
        net = linear()
        task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=val)
        config = plain_config(
            max_steps=stop, batch_size=7, validation={"every": 2}, checkpoint={"keep_best": 2}
        )
        run = surestep.Trainer(task, config, run="runs/other").fit()
    assert run.best.step in (6, 8)
    run.load_model(net, which="best")
    with torch.no_grad():
        assert_same(
            float(nn.functional.mse_loss(net(far[0]), far[1])), run.best.metrics["val/loss"]
        )


def test_generators_of_the_program_are_not_changed_by_data_evaluations_and_predictions():
    def draw():
        return float(torch.rand(())), np.random.rand(), random.random()

    torch.manual_seed(9), np.random.seed(9), random.seed(9)
    plain = [draw() for _ in range(3)]
    task = surestep.Task(linear(), nn.MSELoss(), train=Noisy(), val=Noisy(), inputs=hide)
    config = plain_config(max_steps=3, batch_size=7, data={"num_workers": 0})
    session = prepare(task, config)
    torch.manual_seed(9), np.random.seed(9), random.seed(9)
    ours = [draw()]
    session.evaluate()
    ours.append(draw())
    session.loop.loader.first()
    ours.append(draw())
    assert_same(plain, ours, exact=True)
