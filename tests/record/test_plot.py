"""`surestep.plot()`: the numbers of the figure are those of the runs."""

import io
import math
import sys

import numpy as np
import pytest

import surestep
from surestep.base.errors import ConfigError, RunError
from tests import tiny
from tests.cli.test_diagnose import evaluation, write_events
from tests.needs import needs

needs("matplotlib")
PNG = b"\x89PNG\r\n\x1a\n"
HOSTILE = ["$\\frac{", "_hidden", "<script>", "a\nb\x1b[31m", "{x}", "%s"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with a spike of one step, a loss that is not finite, and two evaluations."""
    monkeypatch.chdir(tmp_path)
    made = tiny.fit(tmp_path / "runs/one", logging={"progress": "quiet"})
    losses = [2.0 / (step + 1) for step in range(10_000)]
    losses[123], losses[7] = 50.0, math.nan
    write_events(made.path, losses, after=[evaluation(100, 0.5), evaluation(10_000, 0.25)])
    return made


def charts(figure):
    return {
        axes.get_title(loc="left"): {
            text.get_text(): line.get_xydata()
            for text, line in zip(axes.get_legend().get_texts(), axes.lines, strict=True)
        }
        for axes in figure.axes
    }


def test_figure_has_the_charts_and_the_numbers_of_the_command(run):
    history = run.history()
    drawn = charts(surestep.plot(run))
    assert list(drawn) == ["loss", "lr"]
    assert list(drawn["loss"]) == ["train/loss (1 value not finite)", "val/loss"]
    train, val = drawn["loss"].values()
    by_step = dict(zip(history.steps, history["train/loss"], strict=True))
    assert all(by_step[step] == value for step, value in train)
    assert len(train) <= 2000
    assert (124, 50.0) in {tuple(point) for point in train}
    assert val.tolist() == [[100, 0.5], [10_000, 0.25]]


def test_columns_are_chosen_and_runs_are_drawn_over_one_another(run, tmp_path):
    write_events(run.path, [1.0, -1.0, 0.0])
    other = tiny.fit(tmp_path / "other", logging={"progress": "quiet"})
    figure = surestep.plot(
        run, str(other.path), surestep.runs("other")[0], of="train/loss", log=True
    )
    ((title, lines),) = charts(figure).items()
    assert title == "train/loss"
    first = f"{run.path} train/loss (2 values not above 0)"
    assert list(lines) == [first, f"{other.path} train/loss", "other train/loss"]
    assert lines[first].tolist() == [[1, 1.0]]
    history = other.history()
    expected = np.stack([history.steps, history["train/loss"]], axis=1)
    assert lines["other train/loss"].tolist() == expected.tolist()
    assert {axes.get_yscale() for axes in figure.axes} == {"log"}
    newest = surestep.plot(of=["grad_norm", "train/loss"])
    assert charts(newest)["grad_norm"].keys() == {"grad_norm (no values)"}
    names = charts(surestep.plot(run, other, of="train/loss"))["train/loss"]
    assert list(names) == ["one train/loss", "other train/loss"]


def test_hostile_names_are_shown_as_they_are(run):
    metrics = {f"val/{name}": 1.0 for name in HOSTILE}
    write_events(run.path, [1.0], after=[{**evaluation(1, 0.5), "metrics": metrics}])
    figure = surestep.plot(run)
    shown = {label for lines in charts(figure).values() for label in lines}
    assert {f"val/{name}" for name in HOSTILE if "\n" not in name} < shown
    assert "val/a\\nb\\x1b[31m" in shown
    assert figure._repr_png_().startswith(PNG)


def test_many_charts_are_named_and_not_drawn(run):
    metrics = {f"val/m{number:02}": 1.0 for number in range(20)}
    write_events(run.path, [1.0], after=[{**evaluation(1, 0.5), "metrics": metrics}])
    figure = surestep.plot(run)
    assert len(figure.axes) == 12
    assert figure.get_suptitle() == "10 more charts: of='m11' draws one."


def test_figure_is_kept_by_no_one(run):
    figure = surestep.plot(run, of="lr")
    figure.savefig(io.BytesIO(), format="svg")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("given", "of", "error", "message"),
    [
        ([], "val/los", ConfigError, "No run has a column 'val/los'. Did you mean 'val/loss'"),
        ([["runs/one"]], (), ConfigError, "and not a list. Pass them one by one"),
        (["runs/gone"], (), RunError, "There is no run folder runs/gone"),
        (["s3://bucket/run"], (), RunError, "surestep mirror fetch s3://bucket/run"),
    ],
)
def test_what_cannot_be_drawn_is_explained(run, given, of, error, message):
    with pytest.raises(error, match=message):
        surestep.plot(*given, of=of)


def test_run_without_steps_is_explained(run):
    write_events(run.path, [])
    with pytest.raises(RunError, match="has no steps and no evaluations yet"):
        surestep.plot(run)


def test_missing_matplotlib_is_named_with_the_command_to_install_it(run, monkeypatch):
    monkeypatch.setattr("surestep.record.plot.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="Install it: pip install matplotlib"):
        surestep.plot(run)
