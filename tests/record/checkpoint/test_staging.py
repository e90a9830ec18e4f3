"""Staging buffers are reused, and every checkpoint is still verified."""

import pytest
import torch

from surestep.base.errors import CorruptCheckpointError
from surestep.engine import private
from surestep.record.checkpoint import writer as write
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint.staging import SnapshotStager, StagingBuffers
from surestep.record.checkpoint.writer import CheckpointFiles, write_checkpoint
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint


def later(state):
    tiny.move(state, 1)
    return state


@pytest.fixture
def second(tmp_path):
    """A snapshot with the layout of the one written before it."""
    staging, state = SnapshotStager(), tiny.state_of()
    write_checkpoint(tmp_path, staging.take(state))
    return staging.take(later(state))


FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


@pytest.mark.parametrize("place", [-2, 0], ids=["changed", "longer"])
@pytest.mark.parametrize("file", FILES)
def test_bytes_of_a_later_checkpoint_are_read_back(tmp_path, monkeypatch, second, file, place):
    sync = CheckpointFiles.sync

    def forgetful(written):
        if file in written.files:
            with (written.folder / file).open("r+b") as damaged:
                damaged.seek(place, 2)
                damaged.write(b"\xff")
        sync(written)

    monkeypatch.setattr(CheckpointFiles, "sync", forgetful)
    there = sorted(tmp_path.iterdir())
    with pytest.raises(
        CorruptCheckpointError, match=f"{file}: it has other bytes than were written"
    ):
        write_checkpoint(tmp_path, second)
    assert sorted(tmp_path.iterdir()) == there


def test_later_invalid_record_is_rejected(tmp_path):
    staging, state = SnapshotStager(), tiny.state_of()
    write_checkpoint(tmp_path, staging.take(state))
    later(state).counts.overflow = -1
    with pytest.raises(CorruptCheckpointError, match=r"state\.json: it\.counts\.overflow is -1"):
        write_checkpoint(tmp_path, staging.take(state))


@pytest.mark.parametrize("part", ["best", "plateau"])
def test_there_is_an_evaluation_before_the_first_step_and_after_each(tmp_path, part):
    state, name = tiny.state_of(steps=2), {"best": "since_best", "plateau": "bad"}[part]
    setattr(getattr(state, part), name, 3)
    save_checkpoint(tmp_path, state)
    setattr(getattr(state, part), name, 4)
    with pytest.raises(CorruptCheckpointError, match=f"{part}.{name} is 4, and .* at most 3"):
        save_checkpoint(tmp_path, state)


def test_later_checkpoint_equals_one_saved_alone(tmp_path, second):
    state = later(tiny.state_of())
    alone = save_checkpoint(tmp_path / "alone", state)
    path = write_checkpoint(tmp_path, second)
    for file in FILES:
        assert (path / file).read_bytes() == (alone / file).read_bytes()
    load_checkpoint(path, tiny.state_of(steps=0))


def test_tensors_of_a_new_layout_are_opened_for_a_check(tmp_path, monkeypatch):
    opened = []
    own = write.check_readable
    monkeypatch.setattr(write, "check_readable", lambda path, _: opened.append(own(path, _)))
    staging, state = SnapshotStager(), tiny.state_of()
    counts = []
    for change in (
        lambda: None,
        lambda: None,
        lambda: state.model.register_buffer("more", torch.zeros(2)),
        lambda: state.model.register_buffer("more", torch.zeros(3)),
        lambda: state.model.register_buffer("more", torch.zeros(3, dtype=torch.int32)),
        lambda: None,
    ):
        change()
        path = write_checkpoint(tmp_path, staging.take(later(state)))
        counts.append(len(opened))
        assert open_checkpoint(path).manifest.step == state.progress.step
    assert counts == [1, 1, 2, 3, 4, 4]


def test_changed_record_is_read_again(tmp_path, monkeypatch):
    read = []
    own = write.parse_state_json
    monkeypatch.setattr(write, "parse_state_json", lambda *given: read.append(given) or own(*given))
    opened, check = [], write.check_readable
    monkeypatch.setattr(write, "check_readable", lambda *given: opened.append(check(*given)))
    staging, state = SnapshotStager(), tiny.state_of()
    counts = []
    for change in (
        lambda: None,
        lambda: setattr(state.counts, "clipped", 3),
        lambda: state.metadata.update(more=[1]),
        lambda: state.metadata["more"].append(2),  # the same list, changed in place
        lambda: state.spikes.skipped_steps.append((1, 2)),
    ):
        change()
        path = write_checkpoint(tmp_path, staging.take(later(state)))
        counts.append(len(read))
        record = open_checkpoint(path).record
        assert record["metadata"] == state.metadata
        assert record["counts"] == vars(state.counts)
    assert counts == [1, 2, 3, 4, 5]
    assert len(opened) == 1  # the tensor layout is unchanged


class Turned(torch.nn.Module):
    """A square weight, and views of it and of a part of it."""

    def __init__(self, seed):
        super().__init__()
        self.weight = torch.nn.Parameter(tiny.data(4, seed)[0])
        whole = self.weight.detach()
        self.register_buffer("turned", whole.t())
        self.register_buffer("rows", whole[:2])
        self.register_buffer("same", whole.view(4, 4))


def test_view_of_a_tensor_with_other_strides_or_another_shape_is_not_a_tied_one(tmp_path):
    saved, fresh = tiny.state_of(Turned(0), steps=0), tiny.state_of(Turned(1), steps=0)
    path = save_checkpoint(tmp_path, saved)
    assert open_checkpoint(path).record["aliases"] == {"same": "weight"}
    load_checkpoint(path, fresh)
    for name, value in saved.model.state_dict().items():
        assert torch.equal(fresh.model.state_dict()[name], value), name
    assert not torch.equal(fresh.model.weight, fresh.model.weight.t())


def test_snapshot_has_the_numbers_at_its_time(tmp_path):
    staging, state = SnapshotStager(), tiny.state_of()
    snapshot = staging.take(state)
    step = state.progress.step
    later(state).counts.clipped += 5
    state.spikes.losses.append(1.0)
    state.best.latest["loss"] = 2.0
    found = open_checkpoint(write_checkpoint(tmp_path, snapshot)).record
    assert found["progress"]["step"] == step
    assert (found["counts"]["clipped"], found["best"]["latest"]) == (0, {})
    assert found["spikes"]["losses"] == []


def test_staging_buffers_that_fit_are_reused(tmp_path):
    staging, state = SnapshotStager(), tiny.state_of()
    before = staging.take(state).layout.buffers["optimizer"]
    state.model.register_buffer("more", torch.zeros(2))
    taken = staging.take(state).layout.buffers
    assert "more" in taken["model"]
    after = taken["optimizer"]
    assert before
    assert all(after[name] is before[name] for name in before)


class Elsewhere:
    """Mimic a tensor that only has a device."""

    def __init__(self, device):
        self.device = torch.device(device)


def test_snapshot_synchronizes_every_device_with_tensors(monkeypatch):
    """The current device may be a different one, so copies could be incomplete."""
    waited = []
    monkeypatch.setattr(private, "foreach_copy_", lambda *_, **__: None)
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    layout = StagingBuffers({"model": {name: torch.zeros(2) for name in "abcd"}})
    places = {"a": "cuda:1", "b": "cpu", "c": "cuda:3", "d": "cuda:1"}
    layout.fill({"model": {name: Elsewhere(place) for name, place in places.items()}})
    assert sorted(map(str, waited)) == ["cuda:1", "cuda:3"]
