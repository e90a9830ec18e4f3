"""The numbers of the page of a run are those that its folder records."""

import math

import pytest

from surestep.base.errors import RunError
from surestep.record.run import Run
from surestep.reports.describe_run import describe_run
from tests.reports.folders import TIME, checkpoint, evaluation, log_point, write_run


def described(folder, events, **more):
    return describe_run(Run(write_run(folder, events, **more)), "runs/a")


def charts_of(data):
    return {chart["title"]: chart for chart in data["charts"]}


def test_time_is_split_and_repeated_steps_count(tmp_path):
    events = [
        *(log_point(1, [3.0, 2.0]), evaluation(2, 1.5), checkpoint(2), log_point(3, [1.0, 0.5])),
        {"event": "resume", "time": 1.0, "step": 2},
        *(log_point(3, [1.0, 0.5]), evaluation(4, 0.75), checkpoint(4)),
    ]
    for event, time in zip(events, (10, 11, 12, 13, 100, 103, 104, 107), strict=True):
        event["time"] = TIME + time
    data = described(tmp_path / "a", events)
    seconds = {part["name"]: part["seconds"] for part in data["time"]}
    assert seconds == {
        "computing": 4.5,
        "waiting for data": 1.5,
        "evaluating": 4.0,
        "waiting for checkpoints": 1.0,
        "starting, and the rest": 9.0,
    }
    (loss, val) = charts_of(data)["loss"]["curves"]
    assert loss["values"].tolist() == [3.0, 2.0, 1.0, 0.5]
    assert (val["steps"].tolist(), val["values"].tolist()) == ([2, 4], [1.5, 0.75])
    kinds = [(mark["kind"], mark["step"]) for mark in data["marks"]]
    assert sorted(kinds) == [
        *(("checkpoint", 2), ("checkpoint", 4), ("evaluation", 2), ("evaluation", 4)),
        ("resume", 2),
    ]


def test_durations_that_an_older_version_did_not_record_are_not_known(tmp_path):
    old = evaluation(2, 1.5)
    del old["seconds"]
    data = described(tmp_path / "a", [log_point(1, [3.0, 2.0]), old, evaluation(2, 1.0)])
    assert [part["seconds"] for part in data["time"]] == [1.5, 0.5, None, 0.0, 1.0]


def test_each_kind_of_column_has_its_chart(tmp_path):
    norms = {"step": 2, "grad_norm": {"0.weight": 1.0}, "weight_norm": {"0.weight": 2.0}}
    point = log_point(
        *(1, [3.0, 2.0]),
        logged={"kl": [0.1, 0.2]},
        group_lr={"head": 0.2},
        layers={**norms, "update_norm": {"0.weight": 0.1}},
    )
    later = evaluation(2, 1.5, metrics={"val/accuracy": 0.5, "far/accuracy": 0.25})
    data = described(tmp_path / "a", [point, later], decided={"max_grad_norm": 1.0})
    charts = charts_of(data)
    assert {
        title: [curve["name"] for curve in chart["curves"]] for title, chart in charts.items()
    } == {
        "loss": ["train/loss", "val/loss"],
        "kl": ["train/kl"],
        "accuracy": ["val/accuracy", "far/accuracy"],
        "learning rate": ["lr", "lr/head"],
        "gradient norm": ["grad_norm"],
        "samples per second": ["samples per second"],
        "share of time waiting for data": ["share of time waiting for data"],
        "peak memory": ["peak memory"],
        "gradient norm of each layer": ["0.weight"],
        "weight norm of each layer": ["0.weight"],
        "norm of the update of each layer": ["0.weight"],
    }
    assert charts["gradient norm"]["limits"] == {"clipped above": 1.0}
    assert charts["samples per second"]["curves"][0]["values"].tolist() == [4.0]
    assert charts["share of time waiting for data"]["curves"][0]["values"].tolist() == [0.25]


def axis_of(data):
    (axis,) = data["axes"]
    return {name: values.tolist() for name, values in axis.items()}


def test_other_axes_count_from_the_start(tmp_path):
    data = described(tmp_path / "a", [log_point(1, [3.0, 2.0]), log_point(3, [1.0], epoch=1)])
    assert axis_of(data) == {
        "steps": [0, 2, 3],
        "epoch": [0.0, 1.0, 1.5],  # of the second one, half of the steps of the first
        "samples": [0.0, 8.0, 12.0],
        "seconds": [0.0, 2.0, 3.0],
    }


def test_epoch_that_has_ended_is_whole(tmp_path):
    end = {"event": "end", "time": 1.0, "status": "finished", "reason": "", "findings": []}
    points = [log_point(1, [3.0, 2.0]), log_point(3, [1.0], epoch=1)]
    data = described(tmp_path / "a", [*points, {**end, "epoch": 2}])
    assert axis_of(data)["epoch"] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("samples", "epochs"), [(40, [0.0, 0.2, 0.3]), (None, [0.0, 2 / 3, 1.0])])
def test_first_epoch_that_has_not_ended_has_the_length_of_the_data(tmp_path, samples, epochs):
    about = {"data": {"train samples": samples}}
    points = [log_point(1, [3.0, 2.0]), log_point(3, [1.0])]
    assert axis_of(described(tmp_path / "a", points, about=about))["epoch"] == pytest.approx(epochs)


def test_axes_of_a_run_from_another_one_begin_before_its_first_step(tmp_path):
    events = [
        {"event": "branch", "time": 1.0, "run": "runs/parent", "step": 6},
        *(log_point(7, [3.0, 2.0], epoch=1), log_point(9, [1.0] * 4, epoch=2)),
        log_point(13, [1.0], epoch=3),
    ]
    assert axis_of(described(tmp_path / "a", events)) == {
        "steps": [6, 8, 12, 13],
        "epoch": [1.5, 2.0, 3.0, 3.25],
        "samples": [0.0, 8.0, 24.0, 28.0],
        "seconds": [0.0, 2.0, 6.0, 7.0],
    }


def test_best_value_of_a_run_without_checkpoints_is_that_of_an_evaluation(tmp_path):
    losses = {1: 3.0, 2: "nan", 3: 1.5, 4: 2.0}
    events = [log_point(1, [1.0] * 4), *(evaluation(*one) for one in losses.items())]
    data = described(tmp_path / "a", events)
    best = {"metric": "val/loss", "mode": "min", "step": 3, "path": None, "value": 1.5}
    assert data["best"] == best
    rises = {"monitor": ["val/loss", "max"]}
    assert described(tmp_path / "b", events, ending=rises)["best"]["step"] == 1


@pytest.mark.parametrize("losses", [[math.nan] * 3, [math.inf, -math.inf, math.nan]])
def test_run_without_a_finite_value_has_a_page(tmp_path, losses):
    texts = [str(loss) for loss in losses]
    point = {**log_point(1, [0.0] * 3), "loss": texts, "grad_norm": texts}
    (loss, *_) = described(tmp_path / "a", [point])["charts"]
    assert loss["curves"][0]["not_finite"] == {"count": 3, "steps": [1, 2, 3]}


@pytest.mark.parametrize("status", ["running", "failed", "stopped"])
def test_run_without_events_has_a_page(tmp_path, status):
    data = described(tmp_path / "a", [], status=status)
    assert data["charts"] == []
    assert [part["seconds"] for part in data["time"]] == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert data["state"] == ("killed" if status == "running" else status)
    resumes = "surestep resume runs/a" in [one["command"] for one in data["commands"]]
    assert resumes


def test_many_metrics_are_limited_and_counted(tmp_path):
    metrics = {f"val/metric {number:06d}": 1.0 for number in range(20_000)}
    data = described(tmp_path / "a", [log_point(1, [1.0]), evaluation(1, 1.0, metrics=metrics)])
    assert len(data["charts"]) == 100
    assert data["omitted"] == 20_000 + 6 - 100
    assert len(data["omitted_charts"]) == 100


def test_damaged_events_are_an_error_with_the_line(tmp_path):
    folder = write_run(tmp_path / "a", [log_point(1, [1.0])])
    with (folder / "events.jsonl").open("a") as file:
        file.write("nonsense\n")
    with pytest.raises(RunError, match="line 3 is not an event"):
        describe_run(Run(folder), "runs/a")


@pytest.mark.parametrize("about", [{"loss": "text", "validation": [1], "data": {}, "model": 3}])
def test_config_of_anyone_has_a_page(tmp_path, about):
    data = described(tmp_path / "a", [log_point(1, [1.0])], about=about)
    assert ["model", "3"] in data["facts"]


def test_findings_of_a_run_that_was_killed_come_from_its_events(tmp_path):
    finding = dict.fromkeys(("rule", "severity", "message", "fix"), "SS605")
    events = [{"event": "finding", "time": TIME, "step": 1, **finding}] * 2
    data = described(tmp_path / "a", [*events, log_point(1, [1.0])], status="running")
    assert [one["rule"] for one in data["findings"]] == ["SS605"]
