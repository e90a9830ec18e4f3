"""The curve of a script that is watched."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from surestep.doctor.runtime.loss_curves import CurveWatcher
from surestep.doctor.watch.hooks import Monitor


def read_curves(script):
    """Run a script, and return its curves."""
    monitor = Monitor({"SS000": CurveWatcher()})
    with monitor.installed():
        script()
    assert monitor.listeners.failures == {}
    return monitor.run.losses.read_curves(monitor.run)


def make_loader(samples=64, seed=0):
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16)


def train(loader, model, optimizer, losses, *, after_epoch=lambda: None, epochs=3, scaler=None):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            losses.append(loss.item())
            (loss if scaler is None else scaler.scale(loss)).backward()
            optimizer.step()
        after_epoch()


def make():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def test_curve_has_the_losses_and_rates_of_all_steps():
    losses = []
    (watched,) = read_curves(lambda: train(make_loader(), *make(), losses))
    curve = watched.curve
    assert curve.steps.tolist() == [*range(1, 13)]
    assert curve.losses.tolist() == pytest.approx(losses)
    assert curve.rates.tolist() == [0.5] * 12
    assert curve.classes == 2
    assert curve.has_start
    assert watched.location.file == __file__


def test_evaluations_are_means_over_all_samples():
    model, optimizer = make()
    val_loader, expected = make_loader(40, seed=1), []

    @torch.inference_mode()
    def evaluate():
        outputs = model(val_loader.dataset.tensors[0])
        targets = val_loader.dataset.tensors[1]
        expected.append(-outputs.log_softmax(1)[torch.arange(40), targets].mean().item())
        for x, y in val_loader:
            nn.functional.cross_entropy(model(x), y)

    (watched,) = read_curves(
        lambda: train(make_loader(), model, optimizer, [], after_epoch=evaluate)
    )
    found = watched.curve.evaluations
    assert found.steps.tolist() == [4, 8, 12]
    assert found.losses.tolist() == pytest.approx(expected)
    assert found.scores == {}, "40 predictions are too few"


def test_scaled_losses_are_divided_by_the_scale():
    losses, scaler = [], torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, optimizer = make()

    def script():
        train(make_loader(), model, optimizer, losses, scaler=scaler)

    (watched,) = read_curves(script)
    assert watched.curve.losses.tolist() == pytest.approx(losses)


@pytest.mark.parametrize(
    ("options", "classes"),
    [({}, 2), ({"weight": torch.ones(2)}, None), ({"label_smoothing": 0.1}, None)],
    ids=["plain", "weighted", "smoothed"],
)
def test_classes_are_known_of_a_plain_cross_entropy(options, classes):
    model, optimizer = make()

    def script():
        for x, y in make_loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y, **options).backward()
            optimizer.step()

    (watched,) = read_curves(script)
    assert watched.curve.classes == classes


@pytest.mark.parametrize("is_binary", [False, True], ids=["classes", "binary"])
def test_accuracy_of_each_evaluation_is_measured(is_binary):
    torch.manual_seed(0)
    model = nn.Linear(4, 1 if is_binary else 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_loader, val_loader, expected = make_loader(), make_loader(160, seed=1), []

    def compute_loss(x, y):
        if is_binary:
            targets = y[:, None].float()
            return nn.functional.binary_cross_entropy_with_logits(model(x), targets)
        return nn.functional.cross_entropy(model(x), y)

    def script():
        for _ in range(2):
            for x, y in train_loader:
                optimizer.zero_grad()
                compute_loss(x, y).backward()
                optimizer.step()
            with torch.no_grad():
                x, y = val_loader.dataset.tensors
                predicted = (model(x)[:, 0] > 0).long() if is_binary else model(x).argmax(1)
                expected.append((predicted == y).float().mean().item())
                for x, y in val_loader:
                    compute_loss(x, y)

    (watched,) = read_curves(script)
    (accuracy,) = watched.curve.evaluations.scores.values()
    assert accuracy.tolist() == pytest.approx(expected)


def test_training_data_is_no_evaluation():
    model, optimizer = make()
    loader = make_loader()

    @torch.no_grad()
    def evaluate():
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y)

    def script():
        evaluate()
        train(loader, model, optimizer, [], after_epoch=evaluate)

    (watched,) = read_curves(script)
    assert len(watched.curve.evaluations.steps) == 0


def test_second_loader_of_the_training_data_is_no_evaluation():
    model, optimizer = make()
    loader = make_loader()
    again = DataLoader(loader.dataset, batch_size=64)

    @torch.no_grad()
    def evaluate():
        for x, y in again:
            nn.functional.cross_entropy(model(x), y)

    (watched,) = read_curves(lambda: train(loader, model, optimizer, [], after_epoch=evaluate))
    assert len(watched.curve.evaluations.steps) == 0


def test_loader_that_is_made_again_is_of_the_same_data():
    model, optimizer = make()
    val_data = make_loader(200, seed=1).dataset

    @torch.no_grad()
    def evaluate():
        for x, y in DataLoader(val_data, batch_size=50):
            nn.functional.cross_entropy(model(x), y)

    (watched,) = read_curves(
        lambda: train(make_loader(), model, optimizer, [], after_epoch=evaluate)
    )
    assert watched.curve.evaluations.steps.tolist() == [4, 8, 12]


def test_data_that_is_made_again_is_not_evaluated_for_the_first_time():
    model, optimizer = make()
    alive = []

    @torch.no_grad()
    def evaluate():
        alive.append(make_loader(200, seed=len(alive)))
        for x, y in alive[-1]:
            nn.functional.cross_entropy(model(x), y)

    curves = read_curves(lambda: train(make_loader(), model, optimizer, [], after_epoch=evaluate))
    scores = [watched.curve.evaluations.scores for watched in curves]
    assert [bool(score) for score in scores] == [True, False, False]


def test_evaluation_of_nothing_is_none():
    model, optimizer = make()
    loader, val_loader = make_loader(), make_loader(seed=1)

    @torch.no_grad()
    def evaluate():
        for x, y in val_loader:
            nn.functional.cross_entropy(model(x[:0]), y[:0])

    (watched,) = read_curves(lambda: train(loader, model, optimizer, [], after_epoch=evaluate))
    assert len(watched.curve.evaluations.steps) == 0


def test_a_restored_model_does_not_begin_at_its_start():
    model, optimizer = make()

    def script():
        model.load_state_dict(nn.Linear(4, 2).state_dict())
        train(make_loader(), model, optimizer, [])

    (watched,) = read_curves(script)
    assert not watched.curve.has_start


def train_twice():
    for _ in range(2):
        train(make_loader(), *make(), [])


def train_on_two_losses():
    model, optimizer = make()
    for x, y in make_loader():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.functional.mse_loss(model(x)[:, 0], x[:, 0]).backward()
        optimizer.step()


def train_without_a_loader():
    model, optimizer = make()
    x, y = torch.randn(8, 4), torch.zeros(8).long()
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def train_in_two_phases():
    model, optimizer = make()

    def update(loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for loss_fn in (nn.functional.mse_loss, nn.functional.cross_entropy):
        for x, y in make_loader():
            update(loss_fn(model(x), x[:, :2] if loss_fn is nn.functional.mse_loss else y))


def train_on_more_and_more_classes():
    model, optimizer = nn.Linear(4, 8), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for classes, (x, y) in enumerate(make_loader(), start=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x)[:, :classes], y).backward()
        optimizer.step()


def train_on_harder_data():
    model, optimizer = make()
    loaders = [make_loader(seed=seed) for seed in range(2)]  # both are alive: their ids differ
    for loader in loaders:
        train(loader, model, optimizer, [], epochs=1)


def train_on_a_loss_by_hand():
    model, optimizer = make()
    for x, _ in make_loader():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "script",
    [
        *(train_twice, train_on_two_losses, train_without_a_loader, train_on_a_loss_by_hand),
        *(train_in_two_phases, train_on_more_and_more_classes, train_on_harder_data),
    ],
)
def test_there_is_no_curve_if_losses_may_change_for_other_reasons(script):
    assert read_curves(script) == []
