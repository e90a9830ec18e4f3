"""Groups and times of samples are checked against the data that they belong to."""

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import DataError, TaskError
from surestep.engine.data.origins import list_entries

X, Y = torch.zeros(6, 2), torch.zeros(6, 1)


def prepare(folder, **options):
    task = surestep.Task(nn.Linear(2, 1), "mse", train=(X, Y), **options)
    config = surestep.Config(max_steps=1, batch_size=2)
    surestep.prepare(task, config, run=folder / "run").close()


@pytest.mark.parametrize("option", ["groups", "times"])
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"val": [1]}, r"names 'val', which is not data of the Task: \['train'\]"),
        ({"train": [1, 2]}, r"\['train'\] has 2 entries, and the data 6 samples"),
    ],
)
def test_entries_that_do_not_fit_the_data_are_an_error(tmp_path, option, entries, message):
    with pytest.raises(DataError, match=f"{option}.*{message}|{option}{message}"):
        prepare(tmp_path, **{option: entries})


def test_stream_has_no_groups(tmp_path):
    def stream():
        return iter([(X[0], Y[0])])

    with pytest.raises(DataError, match="names 'new', which is a stream"):
        prepare(tmp_path, val={"new": stream}, groups={"new": [1]})


def test_list_of_groups_is_explained():
    with pytest.raises(TaskError, match="groups is a list, not a dict"):
        surestep.Task(nn.Linear(2, 1), "mse", train=(X, Y), groups=[1] * 6)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, tuple])
def test_entries_are_values_that_can_be_compared(make):
    assert list_entries(make([3, 1, 3])) == [3, 1, 3]
    assert set(list_entries(make([3, 1, 3]), [0, 2])) == {3}
