import json

import pytest
import torch
from torch import nn

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.read import (
    Saved,
    list_checkpoints,
    load_checkpoint,
    load_model,
    read_record,
    saved,
)
from surestep.record.checkpoint.write import FORMAT, save_checkpoint
from tests import tiny


@pytest.fixture
def path(tmp_path):
    return save_checkpoint(tmp_path, tiny.state_of())


def net(last=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, last))


def test_checkpoints_are_listed_by_step(tmp_path):
    for name in ("step-100000000", "step-00000002", "step-00000010", ".tmp-step-00000011-1", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000003").write_text("a file")
    assert [path.name[-3:] for path in list_checkpoints(tmp_path)] == ["002", "010", "000"]
    assert list_checkpoints(tmp_path / "none") == []


def test_saved_is_step_and_metrics(tmp_path):
    state = tiny.state_of()
    state.standing.latest, state.standing.latest_step = {"val/loss": 0.5}, 2
    path = save_checkpoint(tmp_path, state)
    assert saved(path) == Saved(2, {"val/loss": 0.5}, path)


def test_a_wrong_shape_is_named_and_nothing_is_loaded(path):
    model = net(last=5)
    before = tiny.weights(model)
    with pytest.raises(
        CheckpointError, match=r"3\.weight is \(3, 8\) in step-00000002 but \(5, 8\)"
    ):
        load_model(path, model)
    assert torch.equal(tiny.weights(model), before)


def test_another_model_is_named(path):
    with pytest.raises(CheckpointError, match=r"lacks \['4\.bias', '4\.weight'\] and has nothing"):
        load_model(path, nn.Sequential(*net(), nn.Linear(3, 3)))
    with pytest.raises(CheckpointError, match=r"lacks nothing and has \['3\.bias', '3\.weight'\]"):
        load_model(path, net()[:3])


def test_another_optimizer_is_named(path):
    other = tiny.state_of(make=lambda p: torch.optim.SGD(p, lr=0.1), steps=0)
    with pytest.raises(CheckpointError, match="state of AdamW, and the optimizer here is SGD"):
        load_checkpoint(path, other)


def test_a_parameter_that_the_optimizer_did_not_have_is_named(tmp_path):
    state = tiny.state_of(make=lambda p: torch.optim.AdamW(list(p)[:3], lr=0.1))
    with pytest.raises(CheckpointError, match=r"no optimizer state for 3\.bias"):
        load_checkpoint(save_checkpoint(tmp_path, state), tiny.state_of(steps=0))


@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "half", "empty"])
def test_a_damaged_file_is_named(path, name, damage):
    file = path / name
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(data[: len(data) // 2] if damage == "half" else b"")
    with pytest.raises(CheckpointError, match=r"step-00000002.*cannot be read"):
        load_checkpoint(path, tiny.state_of(steps=0))


@pytest.mark.parametrize("record", [[], {}, {"format": "x"}, {"format": FORMAT}, "text", None])
def test_a_record_of_another_kind_is_named(path, record):
    (path / "state.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path, tiny.state_of(steps=0))


def test_a_format_from_the_future_is_refused(path):
    record = read_record(path)
    (path / "state.json").write_text(json.dumps({**record, "format": FORMAT + 1}))
    with pytest.raises(CheckpointError, match=rf"has format {FORMAT + 1}.*pip install -U surestep"):
        load_checkpoint(path, tiny.state_of(steps=0))


def test_an_older_format_is_refused(path):
    record = read_record(path)
    (path / "state.json").write_text(json.dumps({**record, "format": 1}))
    with pytest.raises(CheckpointError, match=rf"has format 1, .* reads format {FORMAT}\."):
        load_checkpoint(path, tiny.state_of(steps=0))


def test_a_checkpoint_that_does_not_fit_leaves_the_state_as_it_was(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    (path / "optimizer.safetensors").write_bytes(b"")
    other = tiny.state_of(steps=0)
    with torch.no_grad():
        next(other.model.parameters()).zero_()
    before = tiny.weights(other.model)
    with pytest.raises(CheckpointError):
        load_checkpoint(path, other)
    assert torch.equal(tiny.weights(other.model), before)
