"""`surestep report`, and the page that `surestep train --report` writes."""

import json
import os

import pytest

from surestep.record.run import Run
from tests.reports.folders import evaluation, log_point, write_run

USUAL = [log_point(1, [3.0, 2.0]), evaluation(2, 1.5)]


@pytest.fixture
def runs(folder):
    """Two runs in the folder runs; the second is newer."""
    return [write_run(folder / "runs" / name, USUAL) for name in ("a", "b")]


def read_names(page):
    """Return the name of the run, or those of the runs, in a page."""
    text = page.read_text().partition('id="data">')[2].partition("</script>")[0]
    data = json.loads(text)
    return data["run"] if data["kind"] == "run" else [one["name"] for one in data["runs"]]


@pytest.mark.parametrize(
    ("words", "page", "names"),
    [
        ([], "runs/b/report.html", "b"),
        (["runs/a"], "runs/a/report.html", "a"),
        (["runs/a", "--out", "mine.html"], "mine.html", "a"),
        (["runs"], "runs/report.html", ["runs/a", "runs/b"]),
        (["runs/b", "runs/a", "runs/b"], "report.html", ["runs/b", "runs/a"]),
    ],
)
def test_page_is_written_where_the_runs_are(runs, surestep, folder, words, page, names):
    os.utime(runs[0] / "events.jsonl", (1, 1))
    os.utime(runs[0] / "status.json", (1, 1))
    before = {path.name for path in runs[0].iterdir()}
    answer = surestep("report", *words)
    assert (answer.code, answer.out.strip()) == (0, page)
    assert read_names(folder / page) == names
    assert {path.name for path in runs[0].iterdir()} - before <= {"report.html"}


def test_json_has_the_numbers_and_writes_no_page(runs, surestep, folder):
    answer = surestep("report", "runs/a", "--json")
    data = json.loads(answer.out)
    assert data["charts"][0]["curves"][0]["values"] == [3.0, 2.0]
    assert list(folder.rglob("*.html")) == []
    data = json.loads(surestep("report", "runs", "--json").out)
    assert [len(run["metrics"]) for run in data["runs"]] == [1, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/gone"], "There is no run folder runs/gone"),
        (["runs/a", "runs/gone"], "There is no run folder runs/gone"),
        (["empty"], "There is no run in empty. Pass the folder of a run, or of runs."),
        (
            ["runs/a", "--out", "pipe.htm"],
            "pipe.htm could not be written: it is not a regular file",
        ),
    ],
)
def test_what_cannot_be_read_or_written_is_explained(runs, surestep, folder, words, message):
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe.htm")
    answer = surestep("report", *words)
    assert (folder / "pipe.htm").is_fifo()
    assert answer.code == 1
    assert message in answer.err
    assert list(folder.rglob("*.html")) == []
    assert list(folder.rglob("*.tmp*")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/a", "--out", "gone/x.html"], "There is no folder gone to write x.html into"),
        (["runs/a", "--out", "runs/a/events.jsonl"], "'.jsonl' is not one"),
        (["runs/a", "--out", ""], "the ending decides the format"),
        (["runs/a", "--out", "."], "the ending decides the format"),
        (["runs/a", "--out", "x.html", "--json"], "--json writes no page"),
        ([""], "The name of a run is empty"),
    ],
)
def test_wrong_words_are_explained_and_nothing_is_replaced(runs, surestep, folder, words, message):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    answer = surestep("report", *words)
    assert answer.code == 2, answer.err
    assert message in answer.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_page_of_the_trials_of_a_study_is_beside_its_own(runs, surestep, folder):
    (folder / "runs" / "study.json").write_text("{}")
    (folder / "runs" / "report.html").write_text("of the search")
    assert surestep("report", "runs").out.strip() == "runs/runs.html"
    assert (folder / "runs" / "report.html").read_text() == "of the search"


def test_folder_without_runs_is_explained(folder, surestep):
    (folder / "runs").mkdir()
    answer = surestep("report")
    assert answer.code == 1
    assert "There is no run in runs." in answer.err


def test_run_that_is_being_written_has_a_page(runs, surestep, folder):
    with (runs[0] / "events.jsonl").open("a") as file:
        file.write('{"event": "steps", "time": 1.0, "fir')
    assert surestep("report", "runs/a").code == 0
    assert read_names(runs[0] / "report.html") == "a"


def test_folder_whose_name_is_not_text_has_a_page(folder, surestep):
    name = os.fsdecode(b"run\xff")
    run = write_run(folder / name, USUAL)
    assert surestep("report", name).code == 0
    assert read_names(run / "report.html") == name
    assert surestep("report", name, "--json").code == 0


def test_page_replaces_a_link_and_not_its_target(runs, surestep, folder):
    """A run folder of anyone may have a link there."""
    (folder / "mine.txt").write_text("mine")
    (runs[0] / "report.html").symlink_to(folder / "mine.txt")
    assert surestep("report", "runs/a").code == 0
    assert (folder / "mine.txt").read_text() == "mine"
    assert not (runs[0] / "report.html").is_symlink()


def test_full_disk_leaves_the_page_before(runs, surestep, monkeypatch):
    assert surestep("report", "runs/a").code == 0
    before = (runs[0] / "report.html").read_bytes()
    write = type(runs[0]).write_text

    def fail(path, text, **more):
        write(path, text[:1000], **more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(runs[0]), "write_text", fail)
    answer = surestep("report", "runs/a")
    assert answer.code == 1
    assert (
        "No space left on device. Free some space, or choose another file with --out" in answer.err
    )
    assert (runs[0] / "report.html").read_bytes() == before
    assert [path.name for path in runs[0].iterdir() if "report" in path.name] == ["report.html"]


def test_train_writes_the_page_of_a_run_that_ends_and_of_one_that_fails(folder, recipe, surestep):
    answer = surestep("train", recipe(), "--run", "good", "--report")
    assert answer.code == 0, answer.err
    assert "Report: good/report.html" in answer.out
    assert Run(folder / "good").config["config"]["report.samples"] == 16
    assert read_names(folder / "good" / "report.html") == "good"
    answer = surestep("train", recipe(), "--run", "bad", "--report", "--optim.lr", "1e30")
    assert answer.code == 1
    page = (folder / "bad" / "report.html").read_text()
    assert '"state":"failed"' in page
    answer = surestep("train", recipe(), "--report", "--dry-run")
    assert answer.code == 2
    assert (
        "leave out --run, --resume, --allow, --from, --notify, --report and --animate" in answer.err
    )


def test_option_that_is_set_is_not_replaced_by_report(folder, recipe, surestep):
    words = ("train", recipe(), "--run", "few", "--report", "--report.samples", "2")
    assert surestep(*words).code == 0
    assert Run(folder / "few").config["config"]["report.samples"] == 2
