"""`python -m benchmarks.gpu` keeps to its time, and reports what it has and what is missing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.gpu import schedule, wheels
from benchmarks.gpu.measure import MEASURES, find_measure, measure_steps, read_rungs
from benchmarks.gpu.page import make_page
from benchmarks.gpu.parts import NAMES, PARTS, Part
from benchmarks.gpu.schedule import PartResult, run_parts

from tests.tuning.speed.fakes import FakeMeasurer, climb, make_knob

ROOT = Path(__file__).parent.parent
GOOD = """print('{"task": "a", "us a step": 12.5}', flush=True)"""
PROGRAMS = {
    "good": GOOD,
    "hangs": f"{GOOD}; import time; time.sleep(60)",
    "fails": f"{GOOD}; raise SystemExit('no such option')",
    "starts others": "import subprocess; subprocess.run(['sleep', '60'])",
}


@pytest.fixture
def short_start(monkeypatch):
    monkeypatch.setattr(schedule, "START_S", 0.3)


def run(*names: str, seconds: float = 480.0, **options) -> list[PartResult]:
    parts = [Part(name, name.upper(), 0.1, **options) for name in names]
    command = lambda part, work_s: [sys.executable, "-c", PROGRAMS[part.name]]  # noqa: E731
    more = {"has_gpu": False, "environment": os.environ, "on_result": lambda results: None}
    return run_parts(parts, command, seconds=seconds, **more)


def test_a_part_that_ends_has_its_rows():
    (result,) = run("good")
    assert (result.rows, result.missing) == ([{"task": "a", "us a step": 12.5}], "")


def test_a_part_that_fails_has_its_rows_and_the_reason():
    (result,) = run("fails")
    assert result.rows == [{"task": "a", "us a step": 12.5}]
    assert result.missing == "it failed: no such option"


@pytest.mark.parametrize("name", ["hangs", "starts others"])
def test_a_part_is_ended_at_its_limit_with_the_processes_that_it_started(name, short_start):
    began = time.monotonic()
    (result,) = run(name)
    assert time.monotonic() - began < 10
    assert result.missing.startswith("it was ended after")


def test_parts_that_cannot_run_are_listed_with_the_reason():
    assert run("good", needs_gpu=True)[0].missing == "it needs a GPU"
    assert run("good", package="no_such_package")[0].missing == "no_such_package is not installed"
    assert run("good", seconds=1.0)[0].missing == "no time was left"


def test_work_is_a_share_of_the_time_and_never_more_than_what_is_left():
    given, parts = {}, [Part("a", "A", 20.0), Part("b", "B", 500.0)]

    def command(part: Part, work_s: float) -> list[str]:
        given[part.name] = work_s
        return [sys.executable, "-c", ""]

    more = {"has_gpu": False, "environment": os.environ, "on_result": lambda results: None}
    run_parts(parts, command, seconds=60.0, **more)
    assert given["a"] == pytest.approx(20 / 8)
    assert given["b"] <= 60.0 - schedule.START_S


def test_results_are_reported_part_by_part():
    counts: list[int] = []
    parts = [Part(name, name, 0.1) for name in ("good", "fails")]
    command = lambda part, work_s: [sys.executable, "-c", PROGRAMS[part.name]]  # noqa: E731
    more = {"has_gpu": False, "environment": os.environ}
    run_parts(parts, command, seconds=60, on_result=lambda r: counts.append(len(r)), **more)
    assert counts == [1, 2]


def test_page_has_the_rows_and_what_is_missing():
    results = [
        PartResult("steps.plain", "Time: plain", [{"loop": "plain", "us": 1234.5}]),
        PartResult("steps.hf", "Time: HF Trainer", missing="transformers is not installed"),
        PartResult("graphs", "cuda_graph: a replayed step", missing="it needs a GPU"),
    ]
    page = make_page(results, {"device": "CPU"})
    assert "| plain | 1,234 |" in page
    assert "- Time: HF Trainer: not measured, since transformers is not installed." in page
    assert page.count("## ") == 2


def test_order_is_that_of_worth_and_every_part_has_a_measure():
    assert PARTS[-1].name == "tune"
    assert NAMES.keys() - MEASURES.keys() == {n for n in NAMES if n.startswith("steps.")}
    for name in NAMES:
        assert callable(find_measure(name, Path()))


def test_rungs_are_those_of_the_file_that_a_tuning_writes():
    fake = FakeMeasurer({"a=1": 0.5}, {"a": [{"a": 1}], "b": "no GPU"}, noise=0.0)
    tuned = climb(fake, make_knob("a"), make_knob("b")).result.as_json()
    rows = list(read_rungs(json.loads(json.dumps(tuned))))
    names = ["as it is", "a=1", "b", "all that is kept, of the first"]
    assert [row["rung"] for row in rows] == names
    assert [row.get("ms a step") for row in rows] == [
        pytest.approx(100),
        pytest.approx(50),
        None,
        None,
    ]
    assert [row.get("ratio") for row in rows[1:]] == [pytest.approx(0.5), None, pytest.approx(0.5)]
    assert rows[2]["outcome"] == "not tried: no GPU"
    page = make_page([PartResult("tune", "surestep tune images", rows)], {})
    assert "| a=1 | 50 | 0.5 | [0.500, 0.500] | kept |" in page


def test_wheels_are_those_of_the_package_without_torch(monkeypatch, tmp_path):
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(wheels, "_pip", lambda *arguments: calls.append(arguments))
    wheels.download(tmp_path)
    wheels.install(tmp_path, tmp_path / "target")
    assert all("pydantic>=2.11" in call and "torch>=2.6" not in call for call in calls)
    assert "--no-index" in calls[1]


def test_steps_are_timed_until_no_time_is_left():
    rows = measure_steps("cpu", 0.5, name="plain")
    assert 0 < next(rows)["us a step"] < 1e6
    time.sleep(0.5)
    with pytest.raises(SystemExit, match="no time was left for Conv net"):
        next(rows)


@pytest.mark.slow("starts several processes that train")
def test_small_form_runs_to_its_end_on_a_cpu(tmp_path):
    parts = "resume,graphs"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--minutes", "8"]
    command += ["--parts", parts, "--out", str(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    found = {
        part["name"]: part for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]
    }
    assert list(found) == parts.split(",")
    assert found["graphs"]["missing"] == "it needs a GPU"
    assert found["resume"]["rows"][0]["bitwise the same"] is True
    assert "it needs a GPU" in (tmp_path / "gpu.md").read_text()
