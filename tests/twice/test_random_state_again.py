"""Random numbers of what is around a model: optimizers, hooks, metrics, samplers, collation."""

import functools
import hashlib
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import surestep
from tests.twice.compare import assert_same, plain_config, prepare, train, weights

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()


def hashed(*place):
    """The documented expression for a seed."""
    words = " ".join(map(str, place)).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little") >> 1


def seed_all(*place):
    """Seed torch, numpy and Python as documented."""
    seed = hashed(*place)
    torch.manual_seed(seed)
    np.random.seed(hashed("numpy", seed) % 2**32)
    random.seed(hashed("python", seed))
    return seed


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 1).double()


def draw():
    """One number of each library."""
    return float(torch.rand(())) + np.random.rand() + random.random()


def without(config, prefix):
    """Leave out what the Task brings: its order or its optimizer."""
    options = config.set_options()
    return surestep.Config().replace_options(
        {name: value for name, value in options.items() if not name.startswith(prefix)}
    )


def run_to(make, stops, folder, *, callbacks=list, **options):
    """Train in processes that end at these steps; return the weights."""
    for stop in stops:
        task = make()
        config = plain_config(max_steps=stop, batch_size=7, **options)
        if task.optimizer is not None or task.optimizers:
            config = without(config, "optim.")
        surestep.Trainer(task, config, run=folder, callbacks=callbacks()).fit()
    return weights(task.model)


def assert_resumes(make, **more):
    whole = run_to(make, (20,), "runs/whole", **more)
    assert_same(whole, run_to(make, (9, 20), "runs/parts", **more), exact=True)


def train_plain(net, batches, before_forward=lambda step, first: None, after_step=None):
    """A loop by hand with SGD; returns the weights."""
    optimizer, first = torch.optim.SGD(net.parameters(), lr=0.1), 0
    for step, (x, y) in enumerate(batches):
        before_forward(step, first)
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        if after_step is not None:
            after_step()
        first = 0 if len(x) < 7 else first + 7
    return weights(net)


def in_order(order):
    return [(X[order[i : i + 7]], Y[order[i : i + 7]]) for i in range(0, len(order), 7)]


STORED = in_order(torch.arange(N))


class Shifted(nn.Module):
    """A model that draws from all three libraries, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.linear = linear()

    def forward(self, x):
        return self.linear(x + draw())


def test_evaluation_draws_by_the_documented_seeds():
    net = Shifted()
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=(X, Y))
    session = prepare(task, plain_config(max_steps=1, batch_size=7, validation={"batch_size": 11}))
    total = 0.0
    with torch.no_grad():
        for first in range(0, N, 11):
            seed_all("evaluate", 0, first, 0, "val")
            rows = slice(first, first + 11)
            total += float(nn.functional.mse_loss(net(X[rows]), Y[rows], reduction="sum"))
    assert_same(total / N, session.evaluate()["val/loss"])
    predicted = session.predict("val")["output"]
    seed_all("evaluate", 0, 11, 0, "val")
    with torch.no_grad():
        assert_same(net(X[11:22]), torch.tensor(predicted[11:22]))


class Bootstrap:
    """A metric of resampled rows, by its own generator or numpy's."""

    def __init__(self, rng):
        self.rng = rng

    def __call__(self, outputs, targets):
        rows = self.rng.randint(0, len(outputs), len(outputs))
        return float(((outputs - targets)[rows] ** 2).mean())


@pytest.mark.parametrize("own", [True, False])
def test_metric_that_draws_is_repeatable_for_any_batch_size(own):
    found = []
    for size in (7, 11):
        metric = Bootstrap(np.random.RandomState(0) if own else np.random)
        task = surestep.Task(
            linear(),
            nn.MSELoss(),
            train=(X, Y),
            val=(X, Y),
            metrics={"boot": surestep.whole_set(metric)},
        )
        config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": size})
        session = prepare(task, config)
        found += [session.evaluate()["val/boot"], session.evaluate()["val/boot"]]
    assert_same([found[0]] * 4, found)
    if not own:
        seed_all("evaluate", 0, N, 0, "val")
        with torch.no_grad():
            assert_same(Bootstrap(np.random)(session.model(X), Y), found[0])


class Stream(IterableDataset):
    """Samples in stored order, or in one that the worker's seed decides."""

    def __init__(self, shuffles=False):
        self.shuffles = shuffles

    def __iter__(self):
        order, info = list(range(N)), get_worker_info()
        if self.shuffles:
            random.Random(0 if info is None else info.seed).shuffle(order)
        for index in order:
            yield X[index], Y[index]


class NoisyCollate:
    """Collates with noise of its own generator, made at once or when it is needed."""

    def __init__(self, late):
        self.rng = None if late else np.random.default_rng(0)

    def __call__(self, samples):
        self.rng = np.random.default_rng(0) if self.rng is None else self.rng
        x, y = map(torch.stack, zip(*samples, strict=True))
        return x + self.rng.random(), y


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("late", [False, True])
def test_collation_of_a_stream_with_its_own_generator_is_the_same_after_a_resume(workers, late):
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=Stream(), collate_fn=NoisyCollate(late))

    assert_resumes(make, data={"num_workers": workers})


def test_stream_shuffled_by_the_seed_of_its_worker_is_that_of_a_plain_script():
    data = {"num_workers": 1, "persistent_workers": False}

    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=Stream(shuffles=True))

    assert_resumes(make, data=data)
    batches = []
    for epoch in range(3):
        order = list(range(N))
        seed = hashed("load", 0, epoch, 0, "train")  # an __iter__ that yields begins with a sample
        random.Random(hashed("worker", seed)).shuffle(order)
        batches += in_order(torch.tensor(order))
    plain = train_plain(linear(), batches[:20])
    assert_same(plain, run_to(make, (20,), "runs/again", data=data))


def shift_inputs(net, rng):
    net.register_forward_pre_hook(lambda module, args: (args[0] + rng.random(),))


def scale_outputs(net, rng):
    net.register_forward_hook(lambda module, args, out: out * rng.random())


def shift_gradients(net, rng):
    net.weight.register_hook(lambda grad: grad + rng.random())


@pytest.mark.parametrize("add", [shift_inputs, scale_outputs, shift_gradients])
def test_hook_with_its_own_generator_draws_the_same_after_a_resume(add):
    def make():
        net = linear()
        add(net, np.random.default_rng(0))
        return surestep.Task(net, nn.MSELoss(), train=(X, Y))

    assert_resumes(make)


class OwnNoise(Dataset):
    """Samples that a transform changes, which may own a generator."""

    def __init__(self, transform, rows=N):
        self.transform, self.rows = transform, rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return self.transform(X[index]), Y[index]


class Shift:
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def __call__(self, x):
        return x + self.rng.random()


class Compose:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


def many():
    return ConcatDataset([OwnNoise(Shift(), rows=1) for _ in range(90)])


def deep():
    within = OwnNoise(Compose(Compose(Compose(Shift()))))
    return ConcatDataset([Subset(Subset(within, range(N)), range(N))])


@pytest.mark.parametrize("dataset", [many, deep])
def test_generators_in_many_datasets_and_deep_within_them_draw_the_same_after_a_resume(dataset):
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=dataset())

    assert_resumes(make, data={"num_workers": 0})


class Langevin(torch.optim.SGD):
    """SGD with noise after each step."""

    def __init__(self, params, lr, kind):
        super().__init__(params, lr)
        self.kind, self.rng = kind, torch.Generator().manual_seed(0)

    def noise(self, like):
        if self.kind == "own":
            return torch.randn(like.shape, generator=self.rng, dtype=like.dtype)
        return {"numpy": np.random.randn, "python": random.random, "torch": draw}[self.kind]()

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter += 0.01 * self.noise(parameter)


@pytest.mark.parametrize("kind", ["own", "numpy", "python", "torch"])
def test_noise_of_an_optimizer_is_the_same_after_a_resume(kind):
    def make():
        optimizer = functools.partial(Langevin, lr=0.1, kind=kind)
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), optimizer=optimizer)

    assert_resumes(make)


def test_noise_of_an_optimizer_has_the_documented_seeds():
    def make():
        optimizer = functools.partial(Langevin, lr=0.1, kind="torch")
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y), optimizer=optimizer)

    net, numbers = linear(), itertools.count()

    def add_noise():
        seed_all("optimizer", 0, next(numbers), 0, "model")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 0.01 * draw()

    plain = train_plain(net, STORED, lambda step, first: None, add_noise)
    assert_same(plain, run_to(make, (7,), "runs/noise"))


def test_noise_of_several_optimizers_in_a_manual_step_has_the_documented_seeds():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = linear(1), linear(2)

    def step(manual_step):
        for name in ("a", "b", "a"):
            for micro_batch in manual_step.micro_batches(name):
                x, y = micro_batch.args
                loss = nn.functional.mse_loss(manual_step.models[name](x), y)
                manual_step.backward(loss, micro_batch)
            manual_step.step(name)

    def make():
        optimizers = dict.fromkeys("ab", functools.partial(Langevin, lr=0.1, kind="torch"))
        return surestep.Task(Two(), train=(X, Y), step=step, optimizers=optimizers)

    net = Two()
    optimizers = {name: torch.optim.SGD(getattr(net, name).parameters(), lr=0.1) for name in "ab"}
    for number, (x, y) in enumerate(STORED):
        for name, call in (("a", 0), ("b", 0), ("a", 1)):
            optimizers[name].zero_grad()
            nn.functional.mse_loss(getattr(net, name)(x), y).backward()
            optimizers[name].step()
            seed_all("optimizer", 0, number, call, name)
            with torch.no_grad():
                for parameter in getattr(net, name).parameters():
                    parameter += 0.01 * draw()
    assert_same(weights(net), run_to(make, (4, 7), "runs/several"))


class NoisyGradients(surestep.Callback):
    def on_backward(self, state):
        for parameter in state.model.parameters():
            parameter.grad += draw()


def test_noise_that_a_callback_adds_to_gradients_is_the_same_after_a_resume():
    def make():
        return surestep.Task(linear(), nn.MSELoss(), train=(X, Y))

    assert_resumes(make, callbacks=lambda: [NoisyGradients()])


def test_manual_step_draws_by_its_step_outside_of_its_passes():
    def step(manual_step):
        scale = 1 + draw()
        for micro in manual_step.micro_batches():
            x, y = micro.args
            loss = nn.functional.mse_loss(manual_step.model(x), y)
            manual_step.backward(scale * loss, micro)
        manual_step.step("model")

    def make():
        return surestep.Task(linear(), train=(X, Y), step=step)

    assert_resumes(make)
    net = linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x, y) in enumerate(STORED):
        seed_all("model", 0, number)
        optimizer.zero_grad()
        ((1 + draw()) * nn.functional.mse_loss(net(x), y)).backward()
        optimizer.step()
    assert_same(weights(net), run_to(make, (7,), "runs/manual"))


def ordered(epoch):
    return torch.Generator().manual_seed(hashed("order", 0, epoch))


RARE = torch.rand(N, generator=torch.Generator().manual_seed(2)).tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda generator: WeightedRandomSampler(RARE, 53, generator=generator),
        lambda generator: RandomSampler(range(N), True, 31, generator=generator),
    ],
)
def test_sampler_of_a_data_loader_draws_by_the_documented_seeds(make):
    batches = [batch for e in range(2) for batch in in_order(torch.tensor(list(make(ordered(e)))))]
    net = linear()
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, sampler=make(None))
    task = surestep.Task(net, nn.MSELoss(), train=loader)
    train(task, without(plain_config(epochs=2), "data."))
    assert_same(train_plain(linear(), batches), weights(net))


def test_order_function_draws_by_the_documented_seeds():
    def order(seed, epoch):
        first = random.randrange(N - 29)
        return torch.randperm(N)[np.random.permutation(N)[first : first + 29]]

    batches = []
    for epoch in range(2):
        seed_all("sampler", 0, epoch, 0)
        batches += in_order(order(0, epoch))
    net = linear()
    sampler = surestep.samplers.custom(order)
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), sampler=sampler)
    train(task, without(plain_config(epochs=2, batch_size=7), "data."))
    assert_same(train_plain(linear(), batches), weights(net))


def jitter(x, y, generator):
    noise = torch.rand(x.shape, generator=generator, dtype=x.dtype)
    return x + noise + draw(), y


def test_batch_transform_draws_by_the_documented_seeds_for_any_micro_batch_size():
    batches = []
    for step, (x, y) in enumerate(STORED):
        seed = seed_all("transform", 0, step)
        own = torch.Generator().manual_seed(hashed("generator", seed))
        batches.append(jitter(x, y, own))
    plain = train_plain(linear(), batches)
    for size in (7, 3):
        net = linear()
        task = surestep.Task(net, nn.MSELoss(), train=(X, Y), batch_transform=jitter)
        train(task, plain_config(epochs=1, batch_size=7, micro_batch_size=size))
        assert_same(plain, weights(net))


def noisy_collate(samples):
    x, y = map(torch.stack, zip(*samples, strict=True))
    return x + draw(), y


def test_collate_function_over_tensors_draws_by_the_documented_seeds():
    batches = []
    for number in range(7):
        seed_all("load", 0, 0, 7 * number, "train")
        rows = range(7 * number, min(7 * number + 7, N))
        batches.append(noisy_collate([(X[i], Y[i]) for i in rows]))
    net = linear()
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), collate_fn=noisy_collate)
    train(task, plain_config(epochs=1, batch_size=7))
    assert_same(train_plain(linear(), batches), weights(net))


def test_own_batches_draw_in_inputs_and_model_by_the_documented_seeds():
    def inputs(batch):
        return batch[0] + draw(), batch[1]

    net = Shifted()
    session = prepare(
        surestep.Task(net, nn.MSELoss(), train=(X, Y), inputs=inputs),
        plain_config(max_steps=9, batch_size=7),
    )
    plain_net = Shifted()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for step in range(3):
        parts = [(X[:5], Y[:5]), (X[5:8], Y[5:8])]
        session.train_step(parts)
        optimizer.zero_grad()
        for first, part in ((0, parts[0]), (5, parts[1])):
            seed_all("own batch", 0, step, first)
            x, y = inputs(part)
            seed_all("model", 0, step, first)
            (nn.functional.mse_loss(plain_net(x), y, reduction="sum") / 8).backward()
        optimizer.step()
    assert_same(weights(plain_net), weights(net))


def test_mixture_of_datasets_is_that_of_a_plain_script():
    a, b = (X[:13], Y[:13]), (X[13:], Y[13:])
    sizes, counts, offsets = {"a": 13, "b": 34}, {"a": 33, "b": 14}, {"a": 0, "b": 13}
    batches = []
    for epoch in range(2):
        parts = []
        for name in ("a", "b"):
            passes = [
                torch.randperm(
                    sizes[name],
                    generator=torch.Generator().manual_seed(hashed("mixture", 0, n, name)),
                )
                for n in range(9)
            ]
            first = epoch * counts[name]
            parts.append(offsets[name] + torch.cat(passes)[first : first + counts[name]])
        shuffled = torch.randperm(47, generator=ordered(epoch))
        owner = torch.tensor([0] * 33 + [1] * 14)[shuffled].tolist()
        streams = [iter(part.tolist()) for part in parts]
        batches += in_order(torch.tensor([next(streams[which]) for which in owner]))
    net = linear()
    task = surestep.Task(
        net,
        nn.MSELoss(),
        train={"a": a, "b": b},
        sampler=surestep.samplers.mixture({"a": 0.7, "b": 0.3}),
    )
    train(task, without(plain_config(epochs=2, batch_size=7), "data."))
    assert_same(train_plain(linear(), batches), weights(net))
