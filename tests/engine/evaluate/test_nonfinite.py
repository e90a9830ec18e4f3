"""A non-finite validation loss is explained with the set, the samples and a fix."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from surestep.base.errors import DataError
from tests import tiny

X, Y = tiny.data(20, seed=4)


def spoiled(*rows):
    x = X.clone()
    x[list(rows), 1] = float("nan")
    return x


class Stored(Dataset):
    """A map-style dataset that returns one sample at a time."""

    def __init__(self, x, y=Y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


def notices(run):
    return [each["text"] for each in run.events() if each["event"] == "notice"]


def test_sample_of_a_subset_is_named_by_its_position(tmp_path):
    part = Subset(TensorDataset(spoiled(7), Y), [3, 9, 7, 1])
    with pytest.raises(DataError, match="val/loss is not finite: sample 2 has NaN or infinite"):
        tiny.prepare(tmp_path / "run", {"val": part})


@pytest.mark.parametrize("form", ["tensors", "dict", "named set"])
def test_nonfinite_set_in_memory_is_rejected_before_the_first_step(tmp_path, form):
    x = spoiled(13, 17)
    val = {"tensors": (x, Y), "dict": {"input": x, "y": Y}, "named set": {"far": (x, Y)}}[form]
    name = "far" if form == "named set" else "val"
    message = rf"{name}/loss is not finite: samples 13, 17 have NaN or infinite .* the inputs"
    with pytest.raises(DataError, match=message):
        tiny.prepare(tmp_path / "run", {"val": val})


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_message_names_nonfinite_targets(tmp_path, value):
    targets = torch.zeros(20, 3)
    targets[5] = float(value)
    parts = {"loss": nn.MSELoss(), "train": (X, torch.zeros(20, 3)), "val": (X, targets)}
    with pytest.raises(DataError, match=r"sample 5 has NaN or infinite values in the targets"):
        tiny.prepare(tmp_path / "run", parts)


def masked_mse(outputs, targets):
    known = targets.isfinite()
    return (outputs - targets)[known].square().sum() / known.numel()


def test_nan_targets_that_the_loss_masks_cause_no_notice(tmp_path):
    targets = torch.zeros(20, 3)
    targets[5, 1] = float("nan")
    parts = {"loss": masked_mse, "train": (X, torch.zeros(20, 3)), "val": (X, targets)}
    run = tiny.fit(tmp_path / "run", parts, epochs=1)
    assert notices(run) == []


@pytest.mark.parametrize("size", [1, 8, 64])
def test_nonfinite_set_read_from_a_dataset_is_explained_once_it_is_evaluated(tmp_path, size):
    run = tiny.fit(
        tmp_path / "run",
        {"val": Stored(spoiled(13))},
        epochs=3,
        validation={"batch_size": size},
    )
    (text,) = notices(run)
    assert text == (
        "val/loss is not finite: sample 13 has NaN or infinite values in the inputs. It cannot "
        "decide which checkpoint is best. Correct or remove 1 sample of val (numbers count from 0)."
    )


class Overflowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny.model()

    def forward(self, x):
        outputs = self.inner(x)
        return outputs if self.training else outputs.where(x[:, :1] < 1.5, float("inf"))


def test_nonfinite_outputs_are_distinguished_from_nonfinite_data(tmp_path):
    high = X.clone().clamp(max=1)
    high[9, 0] = 2
    parts = {"model": Overflowing(), "train": (X.clamp(max=1), Y), "val": (high, Y)}
    run = tiny.fit(tmp_path / "run", parts, epochs=1, validation={"batch_size": 4})
    (text,) = notices(run)
    assert "the inputs and targets of val are finite" in text
    assert "begins at sample 8" in text


def test_set_without_items_causes_no_notice(tmp_path):
    run = tiny.fit(tmp_path / "run", {"val": (X, torch.full_like(Y, -100))}, epochs=1)
    assert notices(run) == []


def test_finite_set_is_read_only_once(tmp_path):
    class Counting(Stored):
        reads = 0

        def __getitem__(self, row):
            Counting.reads += 1
            return super().__getitem__(row)

    with tiny.prepare(
        tmp_path / "run", {"val": Counting(X)}, doctor={"check_data": "off"}
    ) as session:
        Counting.reads = 0
        session.evaluate()
    assert Counting.reads == len(X)
