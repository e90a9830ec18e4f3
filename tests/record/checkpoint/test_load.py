import pytest
import torch
from torch import nn

from surestep.base.errors import CheckpointError
from tests import tiny
from tests.engine.state.test_average import average_of
from tests.record.checkpoint.on_disk import load_checkpoint, load_model, save_checkpoint


@pytest.fixture
def path(tmp_path):
    return save_checkpoint(tmp_path, tiny.state_of())


def net(last=3):
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, last))


def test_wrong_shape_is_named_and_nothing_is_loaded(path):
    model = net(last=5)
    before = tiny.weights(model)
    with pytest.raises(
        CheckpointError, match=r"3\.weight is \(3, 8\) in step-00000002 but \(5, 8\)"
    ):
        load_model(path, model)
    assert torch.equal(tiny.weights(model), before)


def test_sharded_model_of_zero_3_is_reported(path):
    model = net()
    model[0].weight.ds_tensor = torch.zeros(16)  # as after ZeRO 3
    with pytest.raises(CheckpointError, match="Build a new model, and load the checkpoint"):
        load_model(path, model)


def test_different_model_is_rejected_by_name(path):
    with pytest.raises(CheckpointError, match=r"lacks \['4\.bias', '4\.weight'\] and has nothing"):
        load_model(path, nn.Sequential(*net(), nn.Linear(3, 3)))
    with pytest.raises(CheckpointError, match=r"lacks nothing and has \['3\.bias', '3\.weight'\]"):
        load_model(path, net()[:3])


def test_different_optimizer_is_rejected_by_name(path):
    other = tiny.state_of(make=lambda p: torch.optim.SGD(p, lr=0.1), steps=0)
    with pytest.raises(CheckpointError, match="state of AdamW, and the optimizer here is SGD"):
        load_checkpoint(path, other)


def test_parameter_missing_from_the_optimizer_is_named(tmp_path):
    state = tiny.state_of(make=lambda p: torch.optim.AdamW(list(p)[:3], lr=0.1))
    with pytest.raises(CheckpointError, match=r"no optimizer state for 3\.bias"):
        load_checkpoint(save_checkpoint(tmp_path, state), tiny.state_of(steps=0))


def test_rejected_checkpoint_leaves_the_state_unchanged(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    (path / "optimizer.safetensors").write_bytes(b"")
    other = tiny.state_of(steps=0)
    with torch.no_grad():
        next(other.model.parameters()).zero_()
    before = tiny.weights(other.model)
    with pytest.raises(CheckpointError):
        load_checkpoint(path, other)
    assert torch.equal(tiny.weights(other.model), before)


def test_average_that_is_added_begins_with_the_loaded_weights(tmp_path):
    saved, resumed = tiny.state_of(steps=3), tiny.state_of(steps=1)
    resumed.average = average_of(resumed.model)
    load_checkpoint(save_checkpoint(tmp_path, saved), resumed)
    assert resumed.average.n_updates(3) == 1
    for name, value in saved.model.state_dict().items():
        assert torch.equal(resumed.average.tensors[name], value)


def test_loaded_average_counts_its_updates_until_the_checkpoint(tmp_path):
    saved, resumed = tiny.state_of(steps=3), tiny.state_of(steps=1)
    for state in (saved, resumed):
        state.average = average_of(state.model)
    for tensor in saved.average.stored.values():
        tensor.add_(1)
    load_checkpoint(save_checkpoint(tmp_path, saved), resumed)
    assert (resumed.average.n_updates(3), resumed.average.computed_at) == (3, 3)
    for name, value in saved.average.stored.items():
        assert torch.equal(resumed.average.tensors[name], value)


class Rejecting(nn.Module):
    """Rejects its extra state; its table may have grown."""

    def __init__(self, rows):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), float(rows)))
        self.register_buffer("table", torch.full((rows,), float(rows)))
        self.register_buffer("count", torch.tensor(rows) if rows == 5 else None)

    def get_extra_state(self):
        return {"rows": len(self.table)}

    def set_extra_state(self, state):
        if state["rows"] != len(self.weight) + 1:
            raise ValueError("other rows")


def test_rejected_extra_state_leaves_buffers_of_another_shape_as_they_were(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of(Rejecting(5), steps=0))
    fresh = tiny.state_of(Rejecting(3), steps=0)
    table = fresh.model.table
    with pytest.raises(CheckpointError, match="an extra state of the model was rejected"):
        load_checkpoint(path, fresh)
    assert fresh.model.table is table
    assert fresh.model.count is None
    assert table.tolist() == [3.0] * 3
    assert fresh.model.weight.tolist() == [3.0] * 2
