"""A run records what a classifier of two inputs predicts in their plane."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.errors import ConfigError
from surestep.record.decision_regions import UNKNOWN, decode_regions
from surestep.record.records import load_records

CELLS = 9


def points(samples=24, seed=0):
    """Points around the origin, and the quadrant of each without one of them: three classes."""
    x = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + (x > 0).all(1).long()


def net(outputs=3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))


def prepare(folder, *, cells=(CELLS,), config=(), **parts):
    usual = {"model": net(), "loss": nn.CrossEntropyLoss(), "train": points(), "val": points(8, 1)}
    task = surestep.Task(**{**usual, **parts})
    options = {"max_steps": 6, "batch_size": 8, "validation": {"every": "2 steps"}, **dict(config)}
    config = surestep.Config(logging={"progress": "quiet"}, **options)
    callbacks = [surestep.DecisionRegions(cells=number) for number in cells]
    return surestep.prepare(task, config, run=folder, callbacks=callbacks)


def fit(folder, **parts):
    """Train; return the model and the regions of each evaluation."""
    with prepare(folder, **parts) as session:
        session.start_fit()
        list(session.steps())
    return session.model, read(folder)


def read(folder):
    return [decode_regions(event) for event in load_records(folder).regions.values()]


def make_grid(regions):
    """Return the centers of the cells, written again: the first row is the upper one."""
    (left, right), (low, high) = regions.x, regions.y
    width, height = (right - left) / CELLS, (high - low) / CELLS
    return torch.tensor(
        [
            [left + (column + 0.5) * width, high - (row + 0.5) * height]
            for row in range(CELLS)
            for column in range(CELLS)
        ]
    )


def check(regions, probabilities):
    """Compare regions with the probabilities of the classes in each cell."""
    confidence, classes = probabilities.detach().max(1)
    assert regions.classes.flatten().tolist() == classes.tolist()
    found = torch.from_numpy(regions.confidence.flatten() / 255)
    assert torch.allclose(found, confidence.double(), atol=0.51 / 255)


def test_regions_are_the_softmax_of_the_model_in_the_plane(tmp_path):
    model, found = fit(tmp_path / "run")
    assert [(one.step, one.measured, one.n_classes) for one in found] == [
        (step, "weights", 3) for step in (2, 4, 6)
    ]
    check(found[-1], model.eval()(make_grid(found[-1])).softmax(1))
    assert not (found[0].confidence == found[-1].confidence).all()


def test_plane_has_the_training_data_with_a_margin(tmp_path):
    _, found = fit(tmp_path / "run")
    x, y = points()
    for ends, values in zip((found[0].x, found[0].y), x.T, strict=True):
        low, high = float(values.min()), float(values.max())
        assert ends == pytest.approx((low - 0.08 * (high - low), high + 0.08 * (high - low)))
    (event,) = (one for one in load_records(tmp_path / "run").events if "points" in one["event"])
    places = zip(event["x"], event["y"], strict=True)
    shown = dict(zip(places, event["labels"], strict=True))
    expected = {tuple(row): label for row, label in zip(x.tolist(), y.tolist(), strict=True)}
    assert len(shown) == 24
    for (first, second), label in expected.items():
        assert shown[float(f"{first:.5g}"), float(f"{second:.5g}")] == label


@pytest.mark.parametrize("outputs", [(), (1,)])
def test_labels_are_two_classes(tmp_path, outputs):
    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net(1)

        def forward(self, x):
            return self.net(x).reshape(len(x), *outputs)

    x, y = points()
    labels = (y > 0).float().reshape(24, *outputs)
    loss = nn.BCEWithLogitsLoss()
    data = (x, labels)
    model, found = fit(tmp_path / "run", model=Binary(), loss=loss, train=data, val=data)
    one = model(make_grid(found[-1])).reshape(-1, 1).sigmoid()
    check(found[-1], torch.cat([1 - one, one], dim=1))
    (event,) = (one for one in load_records(tmp_path / "run").events if "points" in one["event"])
    assert sorted(event["labels"]) == sorted((y > 0).long().tolist())


def test_model_gets_its_inputs_by_their_name(tmp_path):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, mask=None, plane=None):
            return self.net(plane) if mask is None else self.net(plane * mask)

    x, y = points()
    data = {"plane": x, "y": y}
    model, found = fit(tmp_path / "run", model=Named(), train=data, val=data)
    check(found[-1], model.net(make_grid(found[-1])).softmax(1))


def test_inputs_of_the_task_are_those_of_the_plane(tmp_path):
    """The points are what the model gets, and not what the data has."""
    x, y = points()
    parts = {"train": (10 * x, y), "val": (10 * x, y)}
    model, found = fit(tmp_path / "run", inputs=lambda batch: (batch[0] / 10, batch[1]), **parts)
    assert found[0].x[1] < 5
    check(found[-1], model(make_grid(found[-1])).softmax(1))


def test_regions_of_an_average_are_those_of_the_average(tmp_path):
    config = {"average": {"kind": "ema", "decay": 0.5}, "optim": {"lr": 0.1}}
    with prepare(tmp_path / "run", config=config) as session:
        session.start_fit()
        list(session.steps())
        last = read(tmp_path / "run")[-1]
        grid = make_grid(last)
        raw = session.model(grid).softmax(1)
        with session.state.average.swapped_in():
            probabilities = session.model(grid).softmax(1)
    assert last.measured == "average"
    check(last, probabilities)
    assert not torch.allclose(raw, probabilities, atol=1 / 255)


def test_cells_whose_outputs_are_not_finite_are_unknown(tmp_path):
    with prepare(tmp_path / "run") as session:
        next(iter(session.steps()))
        with torch.no_grad():
            session.model[0].weight.fill_(torch.nan)
        session.evaluate()
    (found,) = read(tmp_path / "run")
    assert (found.classes == UNKNOWN).all()
    assert not found.confidence.any()


def train_by_hand(folder, last):
    """Evaluate every second step, and save the third one."""
    with prepare(folder) as session:
        for result in session.steps():
            if result.step % 2 == 0:
                session.evaluate()
            elif result.step == 3:
                session.save()
            if result.step == last:
                break
    return read(folder)


def test_resumed_run_has_each_frame_once(tmp_path):
    whole, folder = train_by_hand(tmp_path / "whole", 6), tmp_path / "run"
    assert [one.step for one in train_by_hand(folder, 5)] == [2, 4]
    found = train_by_hand(folder, 6)
    events = [event for event in surestep.Run(folder).events() if "regions" in event["event"]]
    assert [event["step"] for event in events] == [2, 4, 4, 6]
    assert [one.step for one in found] == [2, 4, 6]
    for one, other in zip(found, whole, strict=True):
        assert (one.classes == other.classes).all()
        assert (one.confidence == other.confidence).all()


class Points(Dataset):
    """Samples that are loaded one by one."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return X[index], Y[index]


class TwoHeads(nn.Linear):
    def forward(self, x):
        outputs = super().forward(x)
        return {"a": outputs, "b": outputs}


X, Y = points()
WIDE = torch.cat([X, X], dim=1)
TWO = {"x": X, "a": Y, "b": Y}


def test_samples_of_a_dataset_are_read(tmp_path):
    model, found = fit(tmp_path / "run", train=Points())
    check(found[-1], model(make_grid(found[-1])).softmax(1))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"val": None, "config": {"validation": {}}}, "this Task has no validation set"),
        (
            {"model": nn.Linear(4, 3), "train": (WIDE, Y), "val": (WIDE, Y)},
            r"an input of this model is a tensor of shape \(4,\) and dtype torch.float32",
        ),
        (
            {"model": net(2), "loss": nn.MSELoss(), "train": (X, X), "val": (X, X)},
            "the loss MSELoss predicts numbers, and no class",
        ),
        ({"loss": lambda outputs, y: outputs.mean()}, "the loss is a custom function"),
        ({"model": nn.Linear(2, 65)}, "this model has 65 classes, of which at most 64"),
        (
            {
                **{"model": TwoHeads(2, 3), "train": TWO, "val": TWO},
                "loss": {"a": nn.CrossEntropyLoss(), "b": nn.CrossEntropyLoss()},
            },
            "the Task has several losses",
        ),
        (
            {
                **{"model": net(2), "loss": nn.BCEWithLogitsLoss()},
                **dict.fromkeys(("train", "val"), (X, (X > 0).float())),
            },
            "this model predicts several labels for a sample",
        ),
        (
            {"train": (X * torch.nan, Y), "config": {"on_nonfinite": "skip"}},
            "no sample of the training data that was read is finite",
        ),
    ],
)
def test_other_tasks_are_rejected_before_the_first_step(tmp_path, parts, reason):
    with pytest.raises(ConfigError, match=f"{reason}.* Leave it out of the callbacks"):
        prepare(tmp_path / "run", **parts)
    assert not (tmp_path / "run").exists()


def test_second_grid_in_a_run_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match=r"2 DecisionRegions are in the callbacks.* Leave one"):
        prepare(tmp_path / "run", cells=(CELLS, 9))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cells", [7, 257, 9.0, "96", True, None])
def test_wrong_number_of_cells_is_rejected(cells):
    with pytest.raises(ConfigError, match=r"is not a number of cells from 8 to 256.* cells=96"):
        surestep.DecisionRegions(cells=cells)
