"""Weights & Biases without a network: its offline files are read back."""

import json
import struct
import time

import pytest

from tests.needs import needs
from tests.tracking.test_delivery import expected_points, train

BLOCK, FULL_OR_LAST = 32768, (1, 4)


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    needs("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))


def chunks(data):
    """Yield the records of a file in LevelDB's log format, after a header of seven bytes."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in FULL_OR_LAST:
            yield record
            record = b""


def records(folder):
    """Return the records in the offline files of a run folder, in order."""
    from wandb.proto import wandb_internal_pb2

    paths = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    return [
        wandb_internal_pb2.Record.FromString(chunk)
        for path in paths
        for chunk in chunks(path.read_bytes())
    ]


def losses(folder):
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.item}
        for one in (record.history for record in records(folder) if record.HasField("history"))
    ]
    return [
        (row["step"], name, row[name])
        for row in rows
        for name in ("train/loss", "val/loss")
        if name in row
    ]


def test_run_is_written_offline_and_resumed_with_the_same_id(tmp_path):
    folder = tmp_path / "run"
    train(folder, max_steps=6, **{"logging.trackers": "wandb"})
    time.sleep(1)  # W&B names its folder by the second
    run = train(folder, **{"logging.trackers": "wandb"})
    assert losses(folder) == expected_points(run)
    runs = [record.run for record in records(folder) if record.HasField("run")]
    assert len({one.run_id for one in runs}) == 1
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["optim.name"] == "adamw"
    artifacts = [record.artifact for record in records(folder) if record.HasField("artifact")]
    logged = [set(one.aliases) for one in artifacts if one.type == "model"]
    assert logged == [{"best", "latest"}] * 2  # one at the end of each process
