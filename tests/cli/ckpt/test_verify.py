import json
import shutil

import pytest

from tests.record.checkpoint.forge import forge_record


def test_valid_checkpoints_exit_with_0(surestep, run):
    answer = surestep("ckpt", "verify", "r")
    assert (answer.code, answer.err) == (0, "")
    first, *_, last = answer.out.splitlines()
    assert first.startswith("r/checkpoints/step-00000003: good, ")
    assert last.startswith("r/checkpoints/step-00000009: good, ")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_flipped_bit_is_named_and_exits_with_1(surestep, run, flip, file):
    flip(6, file)
    answer = surestep("ckpt", "verify", "r")
    assert answer.code == 1
    good, bad, last = answer.out.splitlines()
    assert ": good, " in good
    assert ": good, " in last
    told = "it has other bytes than were written."
    assert bad == f"r/checkpoints/step-00000006: {file}: {told}"


@pytest.mark.parametrize("name", ["progress__steps_taken", "progress__items", "counts__overflow"])
def test_counts_that_a_resume_rejects_are_named_although_hashes_match(surestep, run, folder, name):
    forge_record(folder / "r/checkpoints/step-00000006", **{name: 0 if "progress" in name else 2})
    answer = surestep("ckpt", "verify", "r")
    assert answer.code == 1
    assert "step-00000006: state.json: " in answer.out


@pytest.mark.parametrize("place", ["r", "file://{folder}/mirror"])
def test_progress_that_differs_from_the_events_is_named(surestep, run, folder, place):
    shutil.copytree(folder / "r", folder / "mirror")
    for name in ("r", "mirror"):
        forge_record(folder / name / "checkpoints/step-00000006", progress__position=5)
    answer = surestep("ckpt", "verify", place.format(folder=folder))
    assert answer.code == 1
    assert "step-00000006: state.json: progress.position is 5, and events.jsonl has " in answer.out
    assert answer.out.count(": good, ") == 2


def test_every_corrupt_file_is_named(surestep, run, flip):
    flip(6)
    flip(6, "state.json")
    answer = surestep("ckpt", "verify", "r@6")
    assert [line.split(": ")[1] for line in sorted(answer.out.splitlines())] == [
        *("model.safetensors", "state.json")
    ]


@pytest.mark.parametrize("name", ["r@6", "r@best", "r/checkpoints/step-00000006"])
def test_single_checkpoint_can_be_verified(surestep, run, flip, name):
    flip(3)
    answer = surestep("ckpt", "verify", name)
    assert (answer.code, len(answer.out.splitlines())) == (0, 1)
    flip(6)
    answer = surestep("ckpt", "verify", name, "--json")
    (found,) = json.loads(answer.out)
    assert (answer.code, found["verified"]) == (1, False)
    assert found["path"] == "r/checkpoints/step-00000006"
    assert "model.safetensors" in found["problems"][0]


def test_checkpoint_without_its_manifest_is_corrupt(surestep, run):
    (run.last.path / "manifest.json").unlink()
    answer = surestep("ckpt", "verify", "r/checkpoints/step-00000009")
    assert answer.code == 1
    assert "manifest.json" in answer.out


def test_missing_run_or_checkpoint_exits_with_1(surestep, run, folder):
    assert surestep("ckpt", "verify", "gone").code == 1
    answer = surestep("ckpt", "verify", "r@4")
    assert answer.code == 1
    assert "r has no checkpoint of step 4. It has: 3, 6, 9." in answer.err
