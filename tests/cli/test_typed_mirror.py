"""A run that was received writes to no mirror that its user did not type on this machine."""

import json
import shlex
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def mirror(surestep, recipe, folder):
    """Train a run with a mirror; return the address."""
    address = str(folder / "mirror")
    answer = surestep("train", recipe(), "--run", "r", "--checkpoint.mirror", address)
    assert answer.code == 0, answer.err
    return address


@pytest.fixture
def move(monkeypatch, folder):
    """Go to a machine on which nothing was typed, and whose disk has no mirror."""

    def change(state=".other"):
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / state))
        shutil.rmtree(folder / "mirror", ignore_errors=True)

    return change


def command_of(answer):
    """Return the words of the command that an error says to type."""
    text = " ".join(answer.err.partition("type: ")[2].split())
    return shlex.split(text)[1:]


def test_mirror_that_was_typed_at_the_start_is_used_again(surestep, mirror, folder):
    shutil.rmtree(mirror)
    shutil.move("r", "moved")
    assert surestep("resume", "moved").code == 0
    assert (folder / "mirror" / "config.json").exists()
    shutil.rmtree(mirror)
    assert surestep("mirror", "push", "moved").code == 0


def test_mirror_of_a_received_run_is_used_once_it_is_typed(surestep, mirror, move, folder):
    move()
    answer = surestep("resume", "r")
    assert answer.code == 2
    assert f"r names the mirror {mirror}, which was not typed on this machine" in answer.err
    assert not (folder / "mirror").exists()
    assert command_of(answer) == ["resume", "r", "--checkpoint.mirror", mirror]
    assert surestep(*command_of(answer)).code == 0
    assert (folder / "mirror" / "config.json").exists()
    shutil.rmtree(mirror)
    assert surestep("resume", "r").code == 0
    assert (folder / "mirror" / "config.json").exists()


def test_received_run_is_resumed_without_its_mirror(surestep, mirror, move, folder):
    move()
    assert surestep("resume", "r", "--checkpoint.mirror", "none").code == 0
    assert not (folder / "mirror").exists()


def test_received_run_is_pushed_once_the_mirror_is_typed(surestep, mirror, move, folder):
    move()
    answer = surestep("mirror", "push", "r")
    assert answer.code == 2
    assert not (folder / "mirror").exists()
    assert command_of(answer) == ["mirror", "push", "r", "--to", mirror]
    assert surestep(*command_of(answer)).code == 0
    shutil.rmtree(mirror)
    assert surestep("mirror", "push", "r").code == 0


def test_record_that_is_lost_costs_one_more_option(surestep, mirror, move, folder):
    (folder / "file").touch()
    move("file")  # the record cannot be written
    for _ in range(2):
        assert surestep("resume", "r").code == 2
        assert surestep("resume", "r", "--checkpoint.mirror", mirror).code == 0


def test_record_is_never_read_from_the_working_directory(surestep, mirror, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", ".state")  # where it is, as a relative path
    assert surestep("resume", "r").code == 2


@pytest.mark.parametrize("change", ["config.json", "mirror.json"])
def test_received_run_replaces_no_file_elsewhere(surestep, mirror, folder, change):
    place = folder / "documents"
    place.mkdir()
    (place / "events.jsonl").write_text("mine")
    path = folder / "r" / change
    found = json.loads(path.read_text())
    if change == "config.json":
        found["config"]["checkpoint.mirror"] = str(place)
    else:
        found["address"] = str(place)
    path.write_text(json.dumps(found))
    command = ("resume", "r") if change == "config.json" else ("mirror", "push", "r")
    assert surestep(*command).code == 2
    option = "--checkpoint.mirror" if change == "config.json" else "--to"
    typed = surestep(*command, option, place)
    assert typed.code == 1
    assert f"{place} has files that are not of a run, such as events.jsonl" in typed.err
    assert [path.name for path in place.iterdir()] == ["events.jsonl"]
    assert (place / "events.jsonl").read_text() == "mine"


@pytest.mark.parametrize("name", ["events.jsonl", "notes/mine.txt", "config.json"])
@pytest.mark.parametrize("option", ["--checkpoint.mirror", "--run"])
def test_folder_with_other_files_does_not_become_a_mirror(surestep, recipe, folder, name, option):
    path = folder / "documents" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    words = ("train", recipe(), "--run", "r") if option != "--run" else ("train", recipe())
    answer = surestep(*words, option, f"file://{folder}/documents")
    assert answer.code == 1
    assert f"has files that are not of a run, such as {name}" in answer.err
    assert [found for found in (folder / "documents").rglob("*") if found.is_file()] == [path]
    assert path.read_text() == "{}"


def test_hidden_files_do_not_keep_a_folder_from_becoming_a_mirror(surestep, recipe, folder):
    (folder / "disk").mkdir()
    (folder / "disk" / ".DS_Store").touch()
    address = str(folder / "disk")
    assert surestep("train", recipe(), "--run", "r", "--checkpoint.mirror", address).code == 0
    assert Path(address, "config.json").exists()


def test_link_in_a_received_mirror_is_not_written_through(surestep, recipe, mirror, folder):
    place, path = folder / "documents", folder / "mirror" / "events.jsonl"
    place.mkdir()
    path.rename(folder / "kept")
    path.symlink_to(place)
    shutil.rmtree("r")
    answer = surestep("train", recipe(), "--run", f"file://{mirror}", "--epochs", "3")
    assert f"{path} is a link" in answer.err
    assert list(place.iterdir()) == []


def test_mirror_with_a_link_to_a_folder_says_what_to_remove(surestep, recipe, mirror, folder):
    shutil.move(folder / "mirror" / "checkpoints", folder / "documents")
    before = sorted((folder / "documents").rglob("*"))
    (folder / "mirror" / "checkpoints").symlink_to(folder / "documents")
    answer = surestep("train", "mine.py", "--run", "r", "--epochs", "3",
                      "--checkpoint.mirror", mirror)  # fmt: skip
    assert f"{folder}/mirror/checkpoints is a link" in answer.err
    assert sorted((folder / "documents").rglob("*")) == before
