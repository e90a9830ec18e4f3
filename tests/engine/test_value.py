import copy

import pytest
import torch

from surestep.engine.value import Metrics

FOUND = {"val/loss": 0.5, "val/table": [[1.0, 2.0], [3.0, 4.0]]}


def test_metrics_are_numbers_with_the_tables_beside_them():
    metrics = Metrics(FOUND)
    assert metrics == {"val/loss": 0.5}
    assert metrics.tables == {"val/table": FOUND["val/table"]}
    assert metrics.with_tables() == FOUND
    assert repr(metrics) == repr(FOUND)


def test_error_for_a_table_names_where_it_is():
    with pytest.raises(KeyError, match=r"use metrics.tables\['val/table'\]"):
        Metrics(FOUND)["val/table"]
    with pytest.raises(KeyError, match="val/other"):
        Metrics(FOUND)["val/other"]


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy])
def test_copies_of_metrics_keep_the_tables(remake):
    copied = remake(Metrics(FOUND))
    assert type(copied) is Metrics
    assert copied.with_tables() == FOUND


def test_metrics_in_a_file_of_torch_are_a_dict_of_numbers_and_tables(tmp_path):
    torch.save({"metrics": Metrics(FOUND)}, tmp_path / "file.pt")
    assert torch.load(tmp_path / "file.pt", weights_only=True) == {"metrics": FOUND}


def test_metrics_are_equal_if_their_tables_are():
    other = Metrics({**FOUND, "val/table": [[1.0, 2.0], [3.0, 5.0]]})
    assert Metrics(FOUND) == Metrics(FOUND)
    assert (Metrics(FOUND) != Metrics(FOUND)) is False
    assert Metrics(FOUND) != other
    assert (Metrics(FOUND) == other) is False
    assert Metrics(FOUND) != {"val/loss": 0.25}
    assert Metrics(FOUND) == pytest.approx({"val/loss": 0.5})
