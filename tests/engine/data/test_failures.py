"""Errors of the data during a run name the sample, its position and a fix."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import surestep
from surestep.base.errors import DataError, TaskError
from tests import tiny

X, Y = tiny.data(20)
BAD = 13


class Samples(Dataset):
    def __init__(self, load):
        self.load = load

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.load(index)


class Stream(IterableDataset):
    def __init__(self, load):
        self.load = load

    def __iter__(self):
        return map(self.load, range(20))


def missing(index):
    if index == BAD:
        with open("/nonexistent/image.png"):
            pass
    return X[index], Y[index]


def ragged(index):
    return (X[index][:3] if index == BAD else X[index]), Y[index]


def lacking(index):
    return (X[index],) if index == BAD else (X[index], Y[index])


def unknown_class(index):
    return X[index], torch.tensor(7) if index == BAD else Y[index]


def fit(folder, train, *, model=None, val=None, **options):
    usual = {"epochs": 2, "batch_size": 4, "data": {"shuffle": False}}
    task = tiny.task(model=model or tiny.model(), train=train, val=val)
    return surestep.Trainer(task, tiny.config(**{**usual, **options}), run=folder).fit()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("load", "says"),
    [
        (
            missing,
            (
                r"Sample 13 of the train data could not be loaded \(epoch 1, position 13\): ",
                r"FileNotFoundError: .*image\.png' \(.*test_failures\.py, line \d+\)\.",
                r"leave it out: exclude_samples=\[13\]\.$",
            ),
        ),
        (
            ragged,
            (
                r"^Sample 13 of the train data is a tuple of \(a Tensor of shape \(3,\), a Tensor",
                r"of shape \(\)\) \(epoch 1, positions 12 to 15\): .* pad them to one length",
            ),
        ),
        (
            lacking,
            (
                r"\(a Tensor of shape \(4,\)\), and most of its batch are a tuple of",
                r"Return the same parts for every sample",
            ),
        ),
        (
            unknown_class,
            (r"The target 7 of sample 13 \(position 13\) is out of range, at step 4 of",),
        ),
    ],
)
def test_sample_that_fails_during_a_run_is_named(tmp_path, load, says, workers):
    data = {"num_workers": workers, "shuffle": False}
    with pytest.raises(DataError) as caught:
        fit(tmp_path / "run", Samples(load), data=data)
    for words in says:
        caught.match(words)
    assert "Traceback" not in str(caught.value)


def test_sample_of_a_shuffled_epoch_is_named_by_its_dataset_index(tmp_path):
    with pytest.raises(DataError, match=r"The target 7 of sample 13 \(position (\d+)\)") as caught:
        fit(tmp_path / "run", Samples(unknown_class), data={"shuffle": True, "num_workers": 0})
    position = int(re.search(r"position (\d+)", str(caught.value))[1])
    order = torch.randperm(
        20, generator=torch.Generator().manual_seed(surestep.derive_seed("order", 0, 0))
    )
    assert int(order[position]) == BAD


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("load", "says"),
    [
        (missing, r"The stream failed at its sample 13 \(from 0\) of epoch 1: FileNotFoundError"),
        (ragged, r"^Sample 13 of the stream data is a tuple of \(a Tensor of shape \(3,\)"),
        (unknown_class, r"The target 7 of row 13 is out of range, at step 4 of epoch 1"),
    ],
)
def test_error_of_a_stream_names_the_position(tmp_path, load, says, workers):
    data = {"num_workers": workers}
    with pytest.raises(DataError, match=says) as caught:
        fit(tmp_path / "run", Stream(load), epochs=None, max_steps=9, data=data)
    assert "Traceback" not in str(caught.value)


def test_data_error_in_an_evaluation_names_the_set(tmp_path):
    with pytest.raises(DataError, match=r"Sample 13 of the val data could not be loaded"):
        fit(tmp_path / "one", (X, Y), val=Samples(missing))
    said = r"target 7 of sample 13 \(position 13\) is out of range, at the evaluation of the val"
    with pytest.raises(DataError, match=said):
        fit(tmp_path / "two", (X, Y), val=Samples(unknown_class))


def test_sample_with_a_file_path_as_target_is_rejected_with_a_fix(tmp_path):
    def load(index):
        return X[index], int(Y[index]), f"image-{index}.png"

    with pytest.raises(
        DataError, match=r"hold no tensor, but 'image-0.png'\..* choose another part"
    ):
        fit(tmp_path / "run", Samples(load))


class Surplus(Samples):
    """Returns one extra sample, of a different length."""

    def __getitems__(self, indices):
        return [*map(self.load, indices), (X[0][:3], Y[0])]


def test_extra_sample_of_getitems_does_not_hide_the_error(tmp_path):
    says = r"^Samples 0, 1, 2, 3 of the train data could not be put together .*stack expects"
    with pytest.raises(DataError, match=says):
        fit(tmp_path / "run", Surplus(lambda index: (X[index], Y[index])))


def test_samples_with_keys_in_a_different_order_are_equivalent(tmp_path):
    def load(index):
        x = X[index][:3] if index == BAD else X[index]
        sample = {"input": x, "targets": Y[index]}
        return dict(reversed(sample.items())) if index == 12 else sample

    with pytest.raises(
        DataError,
        match=r"^Sample 13 of the train data is a dict of \('input': a Tensor of shape \(3,\)",
    ):
        fit(tmp_path / "run", Samples(load))


@pytest.mark.parametrize("kind", [Samples, Stream])
def test_error_of_a_custom_collate_fn_is_not_attributed_to_ragged_shapes(tmp_path, kind):
    def pad(samples):
        if any(len(x) == 3 for x, _ in samples):
            raise KeyError("pad_id")
        return torch.utils.data.default_collate(samples)

    says = (
        r"^Samples 12, 13, 14, 15 of the (train|stream) data could not be put together "
        r"\(epoch 1, positions 12 to 15\): KeyError: 'pad_id' \(.*test_failures\.py, line \d+\)\.$"
    )
    task = tiny.task(train=kind(ragged), collate_fn=pad)
    data = {"num_workers": 0} if kind is Stream else {"num_workers": 0, "shuffle": False}
    config = tiny.config(max_steps=9, batch_size=4, data=data)
    with pytest.raises(DataError, match=says):
        surestep.Trainer(task, config, run=tmp_path / "run").fit()


def test_run_can_resume_before_the_failed_batch(tmp_path):
    broken = [True]

    def load(index):
        return missing(index) if broken[0] else (X[index], Y[index])

    with pytest.raises(DataError):
        fit(tmp_path / "run", Samples(load), checkpoint={"every": "1 step"})
    broken[0] = False
    assert fit(tmp_path / "run", Samples(load), checkpoint={"every": "1 step"}).status["step"] == 10


CONV = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 3))
FORWARDS = {
    "numpy's float64": (
        tiny.model(),
        X.numpy().astype(np.float64),
        r"module '0' \(Linear\) got \(4, 4\) of torch.float64. Its weights are torch.float32 and "
        r"its input is torch.float64, which is numpy's default: convert the inputs with "
        r"\.to\(torch.float32\) \(in numpy \.astype\('float32'\)\)",
    ),
    "width": (
        nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 3)),
        X,
        r"module '1' \(Linear\) got \(4, 8\) .* takes 9 features in the last dimension and got 8",
    ),
    "channels": (CONV, torch.randn(20, 1, 8, 8), r"module '0' \(Conv2d\) .* takes 3 channels in"),
    "bytes": (
        CONV,
        torch.randint(255, (20, 3, 8, 8), dtype=torch.uint8),
        r"convert the inputs with \.to\(torch.float32\)",
    ),
    "embedding of floats": (
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3)),
        X,
        r"An embedding takes integer indices: convert the inputs with \.long\(\)",
    ),
    "index too large": (
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3)),
        torch.full((20, 4), 7),
        r"It has 5 rows and the largest index is 7: make num_embeddings larger",
    ),
}


@pytest.mark.parametrize("case", FORWARDS)
def test_error_in_a_forward_names_the_module_and_the_conversion(tmp_path, case):
    model, x, says = FORWARDS[case]
    with pytest.raises(TaskError, match=says):
        fit(tmp_path / "run", (x, Y), model=model)


def test_error_in_a_forward_of_an_evaluation_names_the_set(tmp_path):
    class Wide(Samples):
        pass

    wide = Wide(lambda index: (torch.randn(5), Y[index]))
    says = r"fails on the val data, whose inputs have shapes \[\(4, 5\)\] at position 0: module"
    with pytest.raises(TaskError, match=says):
        fit(tmp_path / "run", (X, Y), val=wide)


def test_validation_data_of_a_different_dtype_is_rejected_before_the_run(tmp_path):
    says = r"Tensor 0 of the val data is torch.float64, and in the training data torch.float32"
    with pytest.raises(DataError, match=says):
        fit(tmp_path / "run", (X, Y), val=(X.numpy().astype(np.float64), Y.numpy()))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("train", "val", "says"),
    [
        ((X.double(), Y), (X, Y), r"Convert the training data with \.to\(torch\.float32\)"),
        ((X, Y), (X.double(), Y), r"Convert the val data with \.to\(torch\.float32\)"),
        ((X, Y.float()), (X, Y), r"Class indices are integers \(\.long\(\)\)"),
        ((X, Y), (X, Y.int()), r"Convert both with \.long\(\)"),
        ((X.half(), Y), (X.double(), Y), r"Convert both with \.to\(torch\.float32\)"),
    ],
)
def test_data_of_two_dtypes_is_to_be_converted_to_what_fits(tmp_path, train, val, says):
    with pytest.raises(DataError, match=says):
        fit(tmp_path / "run", train, val=val)


def test_python_lists_as_data_are_described_shortly(tmp_path):
    says = r"Convert lists with torch\.tensor\(data\)"
    with pytest.raises(DataError, match=says) as caught:
        fit(tmp_path / "run", (X.tolist(), Y.tolist()))
    assert re.search(r"a list of \(a list of 4, .*, \.\.\. 20 in all\)", str(caught.value))
    assert len(str(caught.value)) < 900


def test_tensors_of_different_lengths_are_named_with_their_split(tmp_path):
    with pytest.raises(
        DataError, match=r"of the val data have different lengths: 20 and 19\. Inputs"
    ):
        fit(tmp_path / "run", (X, Y), val=(X, Y[:-1]))


def test_batch_size_larger_than_the_data_causes_a_notice(tmp_path, capsys):
    fit(tmp_path / "run", (X, Y), batch_size=64, logging={"progress": "plain"})
    assert "batch_size=64 is larger than the 20 training samples" in capsys.readouterr().err
    fit(tmp_path / "all", (X, Y), batch_size=20, logging={"progress": "plain"})
    assert "is larger than" not in capsys.readouterr().err


def test_error_for_a_negative_class_mentions_ignore_index(tmp_path):
    def load(index):
        return X[index], torch.tensor(-1) if index == BAD else Y[index]

    with pytest.raises(DataError, match=r"target -1 of sample 13 .* the loss's ignore_index"):
        fit(tmp_path / "run", Samples(load))


def test_target_out_of_range_in_batched_data_names_batch_and_row(tmp_path):
    x, y = tiny.data(20)
    y = y.clone()
    y[13] = 7
    batches = [(x[i : i + 5], y[i : i + 5]) for i in range(0, 20, 5)]
    parts = {"train": batches, "batched": True}
    options = {"data": {"shuffle": False}, "batch_size": 1, "max_steps": 4, "epochs": None}
    with (
        pytest.raises(DataError, match=r"The target 7 of row 3 of batch 2 is out of range, at ste"),
        tiny.prepare(tmp_path, parts, **options) as session,
    ):
        list(session.steps())
