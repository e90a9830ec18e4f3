"""Short trainings with one thing wrong, or nothing: the curve of each is named by its events."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import surestep
from surestep.doctor.curves.name import name_curve
from surestep.record.run import Run
from surestep.trainer.review.read_curve import read_curve

COUNT = 1200  # samples of training; the others are those of validation


def digits():
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(found.data / 16, dtype=torch.float32)
    return x[order], torch.tensor(found.target)[order]


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


def train(folder, x, y, *, count=COUNT, width=128, **options):
    """Train a network on the first samples; return its states."""
    task = surestep.Task(
        lambda: nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, 10)),
        nn.CrossEntropyLoss(),
        train=(x[:count], y[:count]),
        val=(x[COUNT:], y[COUNT:]),
        metrics={"accuracy": accuracy},
    )
    usual = {"batch_size": 64, "epochs": 10, "max_grad_norm": "off"}
    quiet = surestep.Logging(progress="quiet")
    config = surestep.Config(logging=quiet).replace_options({**usual, **options})
    surestep.Trainer(task, config, run=folder / "run").fit()
    curve = read_curve(Run(folder / "run"))
    assert curve is not None
    assert curve.classes == 10
    return [state.name for state in name_curve(curve)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_correct_training_is_falling(tmp_path, seed, name):
    rate = {"adamw": 3e-3, "sgd": 0.05}[name]
    options = {"optim.name": name, "optim.lr": rate, "seed": seed}
    assert train(tmp_path, *digits(), **options) == ["falling"]


@pytest.mark.parametrize(
    "options",
    [
        {"schedule.name": "constant"},
        {"schedule.name": "cosine", "schedule.warmup": "20%"},
        {"schedule.name": "cosine_restarts", "schedule.cycles": 4},
        {"schedule.name": "step", "schedule.step_size": "4 epochs"},
    ],
    ids=lambda options: options["schedule.name"],
)
def test_schedule_raises_no_alarm(tmp_path, options):
    options = {"schedule.warmup": "0%", "optim.lr": 3e-3, **options}
    assert train(tmp_path, *digits(), **options)[0] in ("falling", "plateau")


@pytest.mark.slow("trains for 60 epochs")
def test_large_network_on_few_samples_overfits(tmp_path):
    x, y = digits()
    drawn = torch.Generator().manual_seed(1)
    is_wrong = torch.rand(len(y), generator=drawn) < 0.3
    y = torch.where(is_wrong, torch.randint(10, y.shape, generator=drawn), y)
    options = {"optim.lr": 3e-3, "epochs": 60, "batch_size": 32}
    assert train(tmp_path, x, y, count=200, width=512, **options) == ["overfitting", "falling"]


@pytest.mark.parametrize("rate", [100.0, 300.0])
def test_learning_rate_that_is_too_high_diverges(tmp_path, rate):
    options = {"optim.name": "sgd", "optim.lr": rate}
    assert train(tmp_path, *digits(), **options) == ["diverging"]


def test_tiny_learning_rate_is_flat_or_stuck(tmp_path):
    assert train(tmp_path, *digits(), **{"optim.lr": 1e-9})[0] in ("flat", "stuck")


def test_labels_at_random_are_stuck(tmp_path):
    x, y = digits()
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    assert train(tmp_path, x, y, **{"optim.lr": 1e-4}) == ["stuck"]


def test_target_among_the_inputs_is_too_good(tmp_path):
    x, y = digits()
    x = torch.cat([x, 10 * nn.functional.one_hot(y, 10)], 1)
    names = train(tmp_path, x, y, **{"optim.lr": 1e-2, "epochs": 15, "schedule.warmup": "0%"})
    assert names[0] == "leaking"
