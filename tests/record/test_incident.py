"""An incident is read as it was written; anything else is rejected by name."""

import errno
import json
import math
from pathlib import Path

import pytest
import torch

from surestep.base.errors import RunError
from surestep.engine.batch import MicroBatch
from surestep.engine.state.state import Progress
from surestep.record.batch_dump import BatchDump, decode_batch
from surestep.record.incident import (
    incidents_of,
    read_incident,
    referenced_checkpoints,
    write_incident,
)

RECORD = {
    "checkpoint": "step-00000006",
    "run_config": {"recipe": {}, "task": {}, "config": {}},
    "progress": Progress(6, 6, 2, 0, 48)._asdict(),
    **dict.fromkeys(("loss", "grad_norm", "diagnosis", "batch")),
    **{"is_manual": False, "norms": [], "text": "", "not_saved": []},
}


def written(run, step=7, **more):
    return write_incident(run, step, {**RECORD, **more}, {"x": torch.arange(3.0)})


def test_incident_is_read_as_it_was_written(tmp_path):
    path = written(tmp_path, loss=math.nan)
    found = read_incident(path)
    assert path == tmp_path / "incidents" / "step-00000007"
    assert (found.step, found.run) == (7, tmp_path)
    assert found.checkpoint == tmp_path / "checkpoints" / "step-00000006"
    assert math.isnan(found.record["loss"])
    assert torch.equal(found.tensors()["x"], torch.arange(3.0))


def test_incident_of_the_same_step_replaces_the_older_one(tmp_path):
    written(tmp_path, text="old")
    written(tmp_path, text="new")
    (found,) = incidents_of(tmp_path)
    assert found.record["text"] == "new"
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == ["step-00000007"]


def test_checkpoints_referenced_by_incidents_are_found(tmp_path):
    written(tmp_path)
    written(tmp_path, 9, checkpoint="step-00000008")
    folder = tmp_path / "checkpoints"
    assert referenced_checkpoints(folder) == {folder / "step-00000006", folder / "step-00000008"}
    assert referenced_checkpoints(tmp_path / "elsewhere" / "checkpoints") == set()


HOSTILE = {
    "no JSON": (lambda _: "{", "cannot be read"),
    "a list": (lambda _: "[]", "valid dictionary"),
    "no checkpoint": (lambda r: json.dumps({**r, "checkpoint": None}), "it.checkpoint is None"),
    "another folder": (lambda r: json.dumps({**r, "checkpoint": "../../x"}), "not in its run"),
    "a newer format": (lambda r: json.dumps({**r, "format": 99}), "Install a newer one"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_incident_is_rejected(tmp_path, name):
    path = written(tmp_path)
    spoil, message = HOSTILE[name]
    file = path / "incident.json"
    file.write_text(spoil(json.loads(file.read_text())))
    with pytest.raises(RunError, match=message):
        read_incident(path)
    assert list(incidents_of(tmp_path)) == []


def test_batch_file_with_other_bytes_is_rejected(tmp_path):
    path = written(tmp_path)
    (path / "batch.safetensors").write_bytes(b"\x80\x04K\x01.")  # a pickle under our name
    with pytest.raises(RunError, match="other bytes than were written"):
        read_incident(path).tensors()


def test_packed_batch_is_decoded_unchanged():
    args = (torch.ones(2, 3).t(), [1, 2.5, math.inf, None, "text", (True,)])
    micro = MicroBatch(args, {"mask": {"a": torch.zeros(2).bool()}}, torch.tensor([1, 2]), 2, 2, 5)
    packed = BatchDump((micro,))
    assert packed.lost == []
    (found,) = decode_batch(json.loads(json.dumps(packed.record)), packed.tensors)
    assert torch.equal(found.args[0], args[0])
    assert found.args[1] == args[1]
    assert torch.equal(found.kwargs["mask"]["a"], micro.kwargs["mask"]["a"])
    assert found[3:] == micro[3:]


def test_unsupported_batch_values_are_named_and_not_saved():
    micro = MicroBatch((torch.eye(2).to_sparse(), {3: 1}), {}, object(), 1, 1, 0)
    packed = BatchDump((micro,))
    assert packed.lost == ["0.args/1: dict whose keys are not text", "0.targets: object"]


def test_unknown_batch_encoding_is_rejected():
    with pytest.raises(RunError, match="cannot be read"):
        decode_batch([{"args": {"tensor": "x"}}], {})


def test_failed_write_names_the_incident_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunError, match="incidents/step-00000012 could not be written: No space"):
        written(tmp_path, 12)
    assert not list((tmp_path / "incidents").iterdir())
