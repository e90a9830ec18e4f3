"""A run in a notebook: the card has the numbers of the run, is safe, and never raises."""

import json
import math
import shutil
from html.parser import HTMLParser

import pytest

import surestep
from surestep.record.io import write_json
from surestep.record.lock import RunLock
from tests import tiny
from tests.cli.test_diagnose import evaluation, write_events
from tests.record.damage import DAMAGES, change, in_time, spoil

HOSTILE = """<script>alert(1)</script>"'&<img src=x onerror=y>\x1b[31m\n"""
ALLOWED = {"div", "b", "table", "tbody", "tr", "th", "td", "svg", "polyline"}


class Reader(HTMLParser):
    """Collects the tags, the attributes and the text of HTML."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.texts, self._open = [], {}, [], []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= dict(attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(run):
    """Return the parsed card of a run, after a check that it is safe."""
    reader = Reader(run._repr_html_())
    assert set(reader.tags) <= ALLOWED
    assert not [name for name in reader.attributes if name.startswith("on") or "href" in name]
    return reader


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tiny.fit(tmp_path_factory.mktemp("made") / "run", {"val": tiny.data(8)}).path


@pytest.fixture
def run(made, tmp_path):
    return surestep.Run(shutil.copytree(made, tmp_path / "run"))


def test_card_has_the_numbers_of_the_run(run):
    card = read(run)
    best, history = run.best, run.history()
    assert card.texts[:2] == ["run", " finished"]
    rows = dict(zip(card.texts[2::2], card.texts[3::2], strict=True))
    assert rows == {
        "step": "6 of 6",
        "ended": "all steps are done",
        "best": f"val/loss {best.metrics['val/loss']:.4g} at step {best.step}",
        "last train/loss": f"{history['train/loss'][-1]:.4g} at step 6",
        "last val/loss": f"{history['val/loss'][-1]:.4g} at step 6",
    }
    assert "recipe" not in rows  # a script started it


def test_curve_goes_through_the_losses(run):
    write_events(run.path, [3.0, 1.0, math.nan, 2.0])
    card = read(run)
    points = [tuple(map(float, each.split(","))) for each in card.attributes["points"].split()]
    assert points == [(2.0, 2.0), (80.7, 38.0), (238.0, 20.0)]  # the largest is at the top
    assert "1 value not finite" in card.texts


@pytest.mark.parametrize("losses", [[1.0], [2.0, 2.0], [1e308, -1e308], [math.nan], []])
def test_curve_of_odd_losses_is_inside_its_frame(run, losses):
    write_events(run.path, losses)
    card = read(run)
    points = [
        tuple(map(float, one.split(","))) for one in card.attributes.get("points", "").split()
    ]
    assert all(0 <= x <= 240 and 0 <= y <= 40 for x, y in points)
    assert len(points) == (2 if any(map(math.isfinite, losses)) else 0)
    assert ("No step is recorded yet." in card.texts) == (losses == [])


def test_running_and_killed_runs_have_their_state(run):
    write_json(run.path / "status.json", {"status": "running", "monitor": None})
    assert read(run).texts[1] == " killed"
    lock = RunLock(run.path)
    try:
        with (run.path / "events.jsonl").open("a") as file:
            file.write('{"event": "steps", "time"')  # a line that is being written
        card = read(run)
    finally:
        lock.release()
    assert card.texts[:4] == ["run", " running", "step", "6 of 6"]


def test_names_are_text(run):
    change(run.path / "config.json", "recipe", value={"name": HOSTILE, "path": "", "sha256": ""})
    change(run.path / "status.json", "reason", value=HOSTILE)
    write_events(run.path, [1.0], after=[evaluation(1, 0.5)])
    event = {**evaluation(1, 0.5), "metrics": {f"{HOSTILE}/loss": 1.0}}
    with (run.path / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")
    folder = run.path.rename(run.path.with_name(HOSTILE.replace("/", "")))
    card = read(surestep.Run(folder))
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\n", "\\n")
    assert card.texts[0] == shown.replace("/", "")
    assert {shown, f"last {shown}/loss"} < set(card.texts)


@pytest.mark.parametrize("name", ["config.json", "status.json", "events.jsonl"])
@pytest.mark.parametrize("damage", [one for one in DAMAGES if one not in ("device", "huge")])
def test_damaged_file_is_a_sentence_in_the_card(run, name, damage):
    spoil(run.path / name, damage)
    with in_time():
        card = read(run)
    assert card.texts[0] == "run"


def test_what_is_missing_is_named(run):
    (run.path / "events.jsonl").unlink()
    assert any("events.jsonl" in text for text in read(run).texts)
    shutil.rmtree(run.path)
    card = read(run)
    assert card.texts[:2] == ["run", " unreadable"]
    for name in ("config.json", "status.json", "events.jsonl"):
        assert any(text.startswith(f"{run.path / name} is missing") for text in card.texts)


def test_unexpected_error_is_a_sentence_in_the_card(run, monkeypatch):
    def fail(*_):
        raise MemoryError("events")

    monkeypatch.setattr(surestep.Run, "history", fail)
    assert "It cannot be read: MemoryError: events" in read(run).texts


def test_run_of_an_older_version_has_a_card(run):
    """Its files lack what later versions write."""
    change(run.path / "config.json", "config", value={"epochs": 1})
    config = json.loads((run.path / "config.json").read_text())
    write_json(
        run.path / "config.json", {name: config[name] for name in ("recipe", "task", "config")}
    )
    write_json(run.path / "status.json", {"status": "stopped"})
    write_events(run.path, [2.0, 1.0])
    card = read(run)
    assert card.texts[:4] == ["run", " stopped", "step", "6"]
    assert "last train/loss" in card.texts
