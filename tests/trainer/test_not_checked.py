"""The Plan lists what could not be checked before the first step."""

import json

import pytest
import torch

from surestep.engine.plan.not_checked import not_checked
from surestep.trainer import run_identity
from tests import tiny

X, Y = tiny.data(9)
ROWS = [(x, y.repeat(1 + row % 3)) for row, (x, y) in enumerate(zip(X, Y, strict=True))]


@pytest.fixture(autouse=True)
def forget_modules_of_other_tests(monkeypatch):
    """The files of modules that they imported may be deleted, and then cannot be checked."""
    monkeypatch.setattr(run_identity, "_user_files", dict)


def join(samples):
    x, labels = zip(*samples, strict=True)
    return torch.stack(x), torch.cat(labels)


def test_metric_of_joined_targets_is_listed_as_not_checked(tmp_path):
    parts = {
        "loss": lambda outputs, labels: outputs.logsumexp(1).mean(),
        "metrics": {"largest": lambda outputs, labels: outputs.amax(1).mean()},
        **{"train": ROWS, "collate_fn": join},
    }
    with tiny.prepare(tmp_path, parts) as session:
        value, reason = next(row[1:] for row in session.plan.decisions if row[0] == "not_checked")
        assert value == ["metrics['largest']"]
        assert reason == "metrics['largest']: the targets have no row for each sample"
        assert "not_checked" in str(session.plan)
    assert {"option": "not_checked", "value": value, "reason": reason} in json.loads(
        (tmp_path / "plan.json").read_text()
    )


def test_plan_has_no_row_if_all_was_checked(tmp_path):
    not_checked("this", "nothing collects it")
    with tiny.prepare(tmp_path) as session:
        assert "not_checked" not in [option for option, *_ in session.plan.decisions]


class Unreadable(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        raise OSError("no such disk")


def test_validation_data_that_cannot_be_read_is_listed_as_not_checked(tmp_path):
    with tiny.prepare(tmp_path, {"val": Unreadable()}) as session:
        assert "no such disk" in session.plan.reason("not_checked")


class Changing(torch.utils.data.Dataset):
    """Gives other samples when it is read again."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 9

    def __getitem__(self, index):
        self.reads += 1
        return X[index] + self.reads, Y[index]


@pytest.mark.filterwarnings("ignore:The val data gives other samples")
def test_validation_data_that_changes_is_listed_as_not_checked(tmp_path):
    with tiny.prepare(tmp_path, {"val": Changing()}) as session:
        assert "the samples of val: they differ" in session.plan.reason("not_checked")
