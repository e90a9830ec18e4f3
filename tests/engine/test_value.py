import copy
import pickle

import pytest

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


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_of_metrics_keep_the_tables(remake):
    assert remake(Metrics(FOUND)).with_tables() == FOUND
