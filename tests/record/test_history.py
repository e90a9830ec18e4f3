"""The history of a run: a row per step, as its steps, evaluations and log points record it."""

import csv
import io
import math

import numpy as np
import pytest
import torch
from torch import nn

import surestep
from surestep import Run
from surestep.base.errors import RunError
from surestep.record.records import RecordReader, read_records
from tests import tiny
from tests.needs import needs

X, Y = tiny.data()
ACCURACY = {"accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()}


def history_of(*events):
    """Return the history of a run with these events, one a second."""
    return read_records({"time": 1.0 + at, **event} for at, event in enumerate(events)).history


def steps(first, losses, **more):
    series = {"loss": losses, "grad_norm": losses, "lr": [0.1] * len(losses)}
    counts = {"epoch": 0, "items": 4, "samples": 4, "seconds": 1.0, "data_wait_s": 0.0}
    return {"event": "steps", "first": first, **series, **counts, **more}


def evaluation(step, loss, **more):
    return {"event": "evaluation", "step": step, "metrics": {"val/loss": loss}, **more}


def plain_losses(batches):
    """Train as the run does, in plain PyTorch; return the loss of each step."""
    net, losses = tiny.model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_history_has_the_losses_of_plain_pytorch(tmp_path):
    parts = {"train": (X, Y), "val": (X, Y), "metrics": ACCURACY}
    options = {
        **{"epochs": 2, "batch_size": 10, "data": {"shuffle": False}, "max_grad_norm": "off"},
        **{"optim": {"name": "sgd", "lr": 0.1, "momentum": 0, "weight_decay": 0}},
        **{"schedule": "constant", "logging": {"every": "3 steps", "progress": "quiet"}},
    }
    task = tiny.task(**parts)
    run = surestep.Trainer(task, surestep.Config(**options), run=tmp_path / "r").fit()
    history = run.history()
    assert history["step"].tolist() == [1, 2, 3, 4]
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])] * 2
    np.testing.assert_allclose(history["train/loss"], plain_losses(batches), rtol=1e-5)
    assert history["lr"].tolist() == [0.1] * 4
    measured = history["val/accuracy"]
    assert np.isnan(measured).tolist() == [True, False, True, False]
    assert measured[3] == run.last.metrics["val/accuracy"]
    assert history["step"].dtype.kind == "i"


def test_final_results_are_told_apart_from_evaluations(tmp_path):
    with tiny.prepare(tmp_path, {"val": (X, Y), "test": (X, Y)}) as session:
        list(session.steps())
        session.evaluate()
        session.save()
        before = session.run.history()
        assert before.final == ()
        session.evaluate("test")  # of the current weights, at this step
        found = [session.evaluate_checkpoint(*each) for each in (("test", "best"), ("val", "last"))]
    run, after = session.run, session.run.history()
    assert [each.metrics for each in after.final] == found
    assert [(each.step, each.which) for each in after.final] == [
        (run.best.step, "best"),
        (run.last.step, "last"),
    ]
    assert after.keys() - before.keys() == {"test/loss"}
    for name in before.keys() - {"time"}:
        np.testing.assert_array_equal(before[name], after[name])


def test_evaluation_before_the_first_step_has_a_row():
    history = history_of(evaluation(0, 2.0), steps(1, [1.0]), evaluation(1, 0.5))
    assert history["step"].tolist() == [0, 1]
    assert history["val/loss"].tolist() == [2.0, 0.5]
    assert np.isnan(history["train/loss"][0])


def test_steps_that_were_repeated_count_once():
    events = [
        *(steps(1, [1.0, 2.0]), evaluation(2, 0.1), steps(3, [3.0, 4.0]), evaluation(4, 0.2)),
        *({"event": "resume", "step": 3}, steps(4, [5.0], logged={"size": [7.0]})),
        *(evaluation(4, 0.3), {"event": "rollback", "step": 3}, steps(4, [6.0])),
    ]
    history = history_of(*events)
    assert history["step"].tolist() == [1, 2, 3, 4]
    assert history["train/loss"].tolist() == [1.0, 2.0, 3.0, 6.0]
    np.testing.assert_array_equal(history["val/loss"], [np.nan, 0.1, np.nan, np.nan])
    assert "train/size" not in history


@pytest.mark.parametrize(
    ("back", "times"),
    [
        *((1, [np.nan]), (2, [np.nan, 1.0]), (3, [np.nan, 1.0, 3.0])),
        *((4, [np.nan, 1.0, 3.0, 2.0]), (0, [])),
    ],
)
def test_step_that_the_run_goes_back_to_is_kept(back, times):
    """Only the last step of a log point has a time, if it is kept."""
    events = [steps(1, [1.0, 2.0]), steps(3, [3.0, 4.0]), evaluation(3, 0.0)]
    history = history_of(*events, {"event": "rollback", "step": back})
    assert history["step"].tolist() == list(range(1, back + 1))
    np.testing.assert_array_equal(history["time"], times)
    if back >= 3:
        assert history["val/loss"][2] == 0.0


def test_evaluations_of_one_step_are_one_row():
    events = [steps(1, [1.0]), evaluation(1, 0.5), evaluation(1, 0.25)]
    events[2]["metrics"] = {"far/loss": 0.25}
    (row,) = history_of(*events).rows()
    assert (row["val/loss"], row["far/loss"], row["time"]) == ("0.5", "0.25", "3.0")


def test_killed_log_point_that_is_written_again_counts_once():
    history = history_of(steps(1, [1.0, 2.0, 3.0]), steps(2, [None, 5.0]))
    np.testing.assert_array_equal(history["train/loss"], [1.0, np.nan, 5.0])
    np.testing.assert_array_equal(history["time"], [np.nan, np.nan, 2.0])


def test_logged_values_and_rates_of_groups_are_columns():
    events = [
        steps(1, ["nan", None, "inf"], logged={"size": [1, None, 3], "loss": [4, 5, 6]}),
        steps(4, [1.0], group_lr={"head": 0.01}),
    ]
    history = history_of(*events)
    np.testing.assert_array_equal(history["train/loss"], [np.nan, np.nan, np.inf, 1.0])
    np.testing.assert_array_equal(history["train/size"], [1, np.nan, 3, np.nan])
    np.testing.assert_array_equal(history["train/logged_loss"], [4, 5, 6, np.nan])
    np.testing.assert_array_equal(history["lr/head"], [np.nan, np.nan, np.nan, 0.01])
    np.testing.assert_array_equal(history["time"], [np.nan, np.nan, 1.0, 2.0])


def test_tables_and_unknown_values_of_evaluations_are_left_out():
    metrics = {"val/loss": "nan", "val/table": [[1, 2]], "val/unknown": None}
    found = {"event": "evaluation", "step": 1, "metrics": metrics}
    history = history_of(steps(1, [1.0]), found, {**found, "which": "best"})
    assert list(history) == ["step", "time", "train/loss", "grad_norm", "lr", "val/loss"]
    (final,) = history.final
    assert math.isnan(final.metrics["val/loss"])
    assert final.metrics.tables == {"val/table": [[1, 2]]}


def test_run_without_a_step_has_an_empty_history():
    history = history_of()
    assert len(history["step"]) == 0
    assert list(history.rows()) == []


def test_memory_is_in_proportion_to_what_was_recorded():
    found = [{**evaluation(at, 0.5), "metrics": {f"val/{at}": at}} for at in range(1, 301)]
    history = history_of(*found)
    assert (len(history["step"]), len(history)) == (300, 305)
    assert sum(len(column.values) for column in history.columns.values()) == 600
    assert history["val/7"][6] == 7


def test_unknown_column_is_named_with_the_nearest_one(tmp_path):
    with pytest.raises(KeyError, match=r"'train/los'\. Did you mean 'train/loss'"):
        tiny.fit(tmp_path).history()["train/los"]


def test_damaged_events_are_an_error(tmp_path):
    tiny.fit(tmp_path)
    (tmp_path / "events.jsonl").write_text("{}\nnothing\n")
    with pytest.raises(RunError, match="is not an event"):
        Run(tmp_path).history()


def test_rows_leave_out_what_was_not_recorded():
    rows = list(history_of(steps(1, ["nan"]), evaluation(2, 0.25)).rows())
    assert [row["train/loss"] for row in rows] == ["nan", ""]
    assert [row["val/loss"] for row in rows] == ["", "0.25"]
    assert [row["step"] for row in rows] == ["1", "2"]


@pytest.mark.slow("needs pandas")
def test_history_becomes_a_table_of_pandas():
    pandas = needs("pandas")
    history = history_of(steps(1, [1.0, 2.0]), evaluation(2, 0.25))
    table = history.to_pandas()
    expected = pandas.read_csv(io.StringIO(_csv(history)))
    pandas.testing.assert_frame_equal(table, expected)


def _csv(history):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history))
    writer.writeheader()
    writer.writerows(history.rows())
    return text.getvalue()


def test_pandas_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(surestep.errors.ConfigError, match="pip install pandas"):
        tiny.fit(tmp_path).history().to_pandas()


def test_values_beyond_the_losses_of_a_log_point_move_no_later_value():
    history = history_of(
        steps(1, [1.0], grad_norm=[0.5, 9.0, 9.0]), steps(2, [2.0], grad_norm=[0.25])
    )
    assert history["grad_norm"].tolist() == [0.5, 0.25]


def test_records_can_be_built_while_they_are_read():
    reader = RecordReader()
    reader.add({"time": 1.0, **steps(1, [2.0, 1.0])})
    reader.add({"time": 2.0, **evaluation(2, 0.5)})
    once, again = reader.build().history, reader.build().history
    sizes = {name: len(column.rows) for name, column in once.columns.items()}
    assert sizes["val/loss"] == 1
    assert {name: len(column.rows) for name, column in again.columns.items()} == sizes
