import json
import os
import shutil
import time

import pytest

from surestep.cli import ckpt as command
from surestep.record.checkpoint import discovery as examine
from surestep.record.checkpoint.discovery import quarantine
from surestep.record.checkpoint.manifest import add_self_hash


def rows(surestep, *words):
    answer = surestep("ckpt", "list", "r", "--json", *words)
    assert answer.code == 0
    return json.loads(answer.out)


def test_missing_run_folder_is_reported(surestep):
    answer = surestep("ckpt", "list", "runs/none")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "RunError: There is no run folder runs/none. Check the path.\n"


def test_each_checkpoint_has_a_row_with_step_metric_and_reason(surestep, run):
    os.utime(run.last.path / "manifest.json", (time.time() - 7200,) * 2)
    answer = surestep("ckpt", "list", "r")
    assert (answer.code, answer.err) == (0, "")
    title, head, *table = [line.strip() for line in answer.out.splitlines() if line.strip()]
    assert (title, head) == ("r", "step epochs + samples metrics size age verified kept as")
    assert [line.split()[0] for line in table] == ["3", "6", "9"]
    assert table[1].startswith("6 2 val/loss ")
    assert "val/score 0.9" in table[1]
    assert table[1].endswith("yes best, last 2")
    assert table[2].endswith("KiB 2 h yes last")


def test_list_can_be_printed_as_json(surestep, run):
    first, best, last = rows(surestep)
    assert (best["step"], best["metrics"]["val/score"], best["kept"]) == (
        6,
        0.9,
        ["best", "last 2"],
    )
    assert (first["kept"], last["kept"]) == (["last 3"], ["last"])
    assert (last["epoch"], last["position"], last["measured"]) == (3, 0, "weights")
    assert all(each["verified"] is True and each["problems"] == [] for each in (first, best, last))
    size = sum(each.stat().st_size for each in run.last.path.iterdir())
    assert (last["bytes"], last["path"]) == (size, "r/checkpoints/step-00000009")


def test_corrupt_checkpoints_are_shown_and_named(surestep, run, flip):
    flip(6)
    (run.path / "checkpoints/step-00000003/manifest.json").unlink()
    answer = surestep("ckpt", "list", "r")
    assert answer.code == 0
    assert "damaged: model.safetensors" in answer.out
    assert "damaged: manifest.json" in answer.out
    assert "r/checkpoints/step-00000006: model.safetensors: it has other bytes" in answer.err
    found = rows(surestep)
    assert [each["verified"] for each in found] == [False, False, True]
    assert found[1]["problems"] == ["model.safetensors: it has other bytes than were written."]
    assert found[1]["metrics"]["val/score"] == 0.9
    assert [each["kept"] for each in found] == [[], [], ["best", "last"]]


def test_corrupt_checkpoints_that_were_set_aside_are_shown(surestep, run, flip):
    flip(6)
    quarantine(run.path / "checkpoints/step-00000006")
    found = rows(surestep)
    assert [(each["step"], each["verified"]) for each in found] == [
        (3, True),
        (6, False),
        (9, True),
    ]
    assert found[1]["path"] == "r/checkpoints/damaged-step-00000006"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_checkpoint_is_not_reported_as_corrupt(surestep, run):
    (run.last.path / "state.json").chmod(0)
    assert "cannot be read" in surestep("ckpt", "list", "r").out


def test_checkpoint_of_a_newer_surestep_is_not_reported_as_corrupt(surestep, run):
    file = run.last.path / "manifest.json"
    text = file.read_text()
    found = json.loads(text)
    text = text.replace(found["sha256"], "0" * 64)
    text = text.replace(f'"format": {found["format"]}', '"format": 99')
    file.write_text(add_self_hash(text))
    assert "cannot be read" in surestep("ckpt", "list", "r").out
    (*_, last) = rows(surestep)
    assert last["verified"] is None
    assert "Install a newer one" in last["problems"][0]


def test_large_checkpoints_are_verified_only_on_request(surestep, run, flip, monkeypatch):
    flip(6)
    monkeypatch.setattr(command, "READ_AT_ONCE", 1000)
    answer = surestep("ckpt", "list", "r")
    assert answer.out.count("not read") == 3
    assert "were not read" in answer.err
    assert [each["verified"] for each in rows(surestep)] == [None] * 3
    assert [each["verified"] for each in rows(surestep, "--verify")] == [True, False, True]


def test_run_without_checkpoints_is_reported(surestep, run):
    shutil.rmtree(run.checkpoints)
    answer = surestep("ckpt", "list", "r")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith("r had checkpoints, and has none now. Put a copy of one back")
    assert rows(surestep) == []
    (run.path / "events.jsonl").unlink()  # no record that it has ever saved
    assert surestep("ckpt", "list", "r").err == "r has no checkpoint yet.\n"


def test_folder_that_is_not_a_run_is_rejected(surestep, folder):
    (folder / "gone").mkdir()
    answer = surestep("ckpt", "list", "gone")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("RunError: gone is not a run folder")


def test_checkpoint_deleted_while_listing_is_omitted(surestep, run, monkeypatch):
    said = examine.read_record

    def and_delete(path):
        if path.name == "step-00000003":
            shutil.rmtree(path)
        return said(path)

    monkeypatch.setattr(examine, "read_record", and_delete)
    assert [each["step"] for each in rows(surestep)] == [6, 9]
