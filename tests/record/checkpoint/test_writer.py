import os
import pickle
import re
import shutil
import subprocess
import time
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from surestep.base.errors import CheckpointError
from surestep.base.files import temp_name
from surestep.engine.state.state import Progress, State
from surestep.record.checkpoint import writer
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.manifest import verify
from surestep.record.checkpoint.reader import read_record
from surestep.record.checkpoint.writer import AsyncSaver, CheckpointFiles
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint


def saved_and_loaded(tmp_path, state, build, optimizer=None):
    """Save a state, and load it into a new one of the same kind."""
    other = tiny.state_of(build(), optimizer, steps=0)
    load_checkpoint(save_checkpoint(tmp_path, state), other)
    return other


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight


class TransposedView(nn.Module):
    """The second layer has the transposed weight of the first, in the same memory."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)
        self.decoder.weight = nn.Parameter(self.encoder.weight.t())


class Extra(nn.Linear):
    """Has extra state and every kind of buffer."""

    def __init__(self):
        super().__init__(3, 2)
        self.words = {"seen": [1, 2.5, "three", None]}
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("also_empty", torch.zeros(0, 3))
        self.register_buffer("short", torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("view", torch.arange(6.0).view(2, 3).t())

    def get_extra_state(self):
        return self.words

    def set_extra_state(self, state):
        self.words = state


def channels_last():
    torch.manual_seed(0)
    return nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)


def extra():
    torch.manual_seed(0)
    return Extra()


def tied():
    torch.manual_seed(0)
    return Tied()


def transposed():
    torch.manual_seed(0)
    return TransposedView()


BUILDS = {
    **{"plain": tiny.model, "tied": tied, "transposed view": transposed},
    **{"channels last": channels_last, "extra": extra},
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize(
    "optimizer",
    [tiny.fused_adamw, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)],
    ids=["adamw", "sgd"],
)
def test_next_step_after_a_reload_is_bitwise_identical(tmp_path, build, optimizer):
    state = tiny.state_of(build(), optimizer)
    other = saved_and_loaded(tmp_path, state, build, optimizer)
    assert torch.equal(tiny.weights(state.model), tiny.weights(other.model))
    assert other.progress == state.progress
    tiny.move(state, 9)
    tiny.move(other, 9)
    assert torch.equal(tiny.weights(state.model), tiny.weights(other.model))


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    state = tiny.state_of(tied())
    other = saved_and_loaded(tmp_path, state, tied)
    assert read_record(list_checkpoints(tmp_path)[0])["aliases"] == {"head.weight": "table.weight"}
    assert other.model.head.weight is other.model.table.weight


def test_empty_tensors_are_not_stored_as_one(tmp_path):
    assert read_record(save_checkpoint(tmp_path, tiny.state_of(extra())))["aliases"] == {}


def test_extra_state_round_trip(tmp_path):
    state = tiny.state_of(extra())
    state.model.words = {"seen": []}
    assert saved_and_loaded(tmp_path, state, extra).model.words == {"seen": []}


def test_channels_last_is_preserved(tmp_path):
    other = saved_and_loaded(tmp_path, tiny.state_of(channels_last()), channels_last)
    assert other.model.weight.is_contiguous(memory_format=torch.channels_last)


class Noting(torch.optim.SGD):
    """An optimizer whose state has more than tensors."""

    def step(self):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            known = self.state[parameter]
            known["history"] = [*known.get("history", []), len(known)]
            known["note"] = {"number": 1.5, "none": None}


def noting(parameters):
    return Noting(parameters, lr=0.1)


def test_optimizer_state_without_tensors_round_trip(tmp_path):
    state = tiny.state_of(make=noting)
    other = saved_and_loaded(tmp_path, state, tiny.model, noting)
    pairs = zip(state.model.parameters(), other.model.parameters(), strict=True)
    for ours, theirs in pairs:
        assert other.optimizer.state[theirs] == state.optimizer.state[ours]


def two_optimizers(steps, names=("first", "last")):
    """Return a state with a different optimizer for each of two layers."""
    net = tiny.model()
    made = torch.optim.AdamW(net[0].parameters(), lr=0.1), noting(net[3].parameters())
    state = State(net, dict(zip(names, made, strict=True)), torch.amp.GradScaler(enabled=False))
    for _ in range(steps):
        tiny.give_gradients(net)
        for optimizer in made:
            optimizer.step()
    return state


def test_several_optimizers_are_loaded_by_name(tmp_path):
    state, other = two_optimizers(steps=2), two_optimizers(steps=0)
    load_checkpoint(save_checkpoint(tmp_path, state), other)
    for name, optimizer in state.optimizers.items():
        ours, theirs = optimizer.state_dict()["state"], other.optimizers[name].state_dict()["state"]
        assert ours.keys() == theirs.keys() == {0, 1}
        for index, slots in ours.items():
            torch.testing.assert_close(theirs[index], slots, rtol=0, atol=0)


def test_optimizers_with_other_names_are_rejected(tmp_path):
    path = save_checkpoint(tmp_path, two_optimizers(steps=1))
    with pytest.raises(CheckpointError, match="optimizers first, last, and here are first, head"):
        load_checkpoint(path, two_optimizers(steps=0, names=("first", "head")))


def test_optimizer_options_round_trip(tmp_path):
    state = tiny.state_of()
    state.optimizer.param_groups[0]["eps"] = 0.025
    group = saved_and_loaded(tmp_path, state, tiny.model).optimizer.param_groups[0]
    assert (group["eps"], group["betas"], group["fused"]) == (0.025, (0.9, 0.999), True)


def test_best_metric_counts_and_metadata_round_trip(tmp_path):
    state = tiny.state_of()
    state.progress = Progress(7, 6, 2, 8, 1234.5)
    state.counts.overflow = 3
    state.best.latest = {"val/loss": float("nan"), "val/a": 0.5}
    state.best.best, state.best.best_step, state.best.latest_step = 0.1, 5, 6
    state.metadata = {"words": ["any", 1, None]}
    other = saved_and_loaded(tmp_path, state, tiny.model)
    assert str(other.best) == str(state.best)
    assert (other.progress, other.counts) == (state.progress, state.counts)
    assert other.metadata == state.metadata


def test_loss_scale_round_trip(tmp_path):
    state, other = tiny.state_of(), tiny.state_of(steps=0)
    state.scaler = torch.amp.GradScaler("cpu", init_scale=32.0)
    other.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    load_checkpoint(save_checkpoint(tmp_path, state), other)
    assert other.scaler.get_scale() == 32.0


def test_checkpoint_is_safetensors_and_json_without_pickle(tmp_path, monkeypatch):
    path = save_checkpoint(tmp_path, tiny.state_of(extra()))
    names = sorted(file.name for file in path.iterdir())
    assert names == ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, pytest.fail)
    load_checkpoint(path, tiny.state_of(extra(), steps=0))


@pytest.mark.parametrize("where", ["model", "optimizer"])
def test_unsupported_state_is_named(tmp_path, where):
    state = tiny.state_of(extra())
    if where == "model":
        state.model.words = {1, 2}
    else:
        state.optimizer.state[state.model.weight]["what"] = object()
    with pytest.raises(
        CheckpointError, match=r"(_extra_state|weight/what)' is a .*no form in JSON"
    ):
        save_checkpoint(tmp_path, state)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path):
    """A disk with space for one checkpoint, but not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or not shutil.which("mount"):
        yield None
        return
    words = ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True)
    yield folder if done.returncode == 0 else None
    if done.returncode == 0:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_preserves_the_older_checkpoint(tmp_path, small_disk, monkeypatch):
    folder = small_disk or tmp_path / "checkpoints"
    state = tiny.state_of()
    first = save_checkpoint(folder, state)
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    if small_disk is None:
        monkeypatch.setattr(CheckpointFiles, "write", _full)
    tiny.move(state, 5)
    state.metadata["long"] = "x" * 8000
    with pytest.raises(CheckpointError, match=r"(?s)could not be written.*are unchanged\. Free"):
        save_checkpoint(folder, state)
    assert [path.name for path in folder.iterdir()] == [first.name]
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def _full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("background", [True, False])
def test_each_save_has_the_state_of_its_time(tmp_path, monkeypatch, background):
    """The second save begins while the first is being written."""
    write, pruned = writer.write_checkpoint, []

    def slow(*arguments):
        time.sleep(0.02)
        return write(*arguments)

    monkeypatch.setattr(writer, "write_checkpoint", slow)
    prune = lambda: pruned.append(len(list_checkpoints(tmp_path)))  # noqa: E731
    saver = AsyncSaver(tmp_path, prune, background=background)
    state, expected = tiny.state_of(), {}
    for seed in range(2):
        tiny.move(state, seed)
        expected[state.progress.step] = tiny.weights(state.model)
        saver.save(state)
    saver.wait()
    first, second = saver.outcomes()
    assert (first.step, second.step, saver.outcomes()) == (3, 4, [])
    assert pruned == [1, 2]
    for result in (first, second):
        fresh = tiny.state_of(steps=0)
        load_checkpoint(result.path, fresh)
        assert torch.equal(tiny.weights(fresh.model), expected[result.step])
        written_s = result.seconds - result.blocked_s
        assert written_s >= 0.02 if background else written_s == 0


def test_files_are_read_back_after_they_are_synced_and_dropped_from_the_cache(
    tmp_path, monkeypatch
):
    calls = defaultdict(str)  # by descriptor

    def noted(letter, own, descriptor, *arguments):
        calls[descriptor] += letter
        return own(descriptor, *arguments)

    for letter, name in (("d", "posix_fadvise"), ("s", "fsync"), ("r", "pread")):
        monkeypatch.setattr(os, name, partial(noted, letter, getattr(os, name)))
    path = save_checkpoint(tmp_path, tiny.state_of())
    # The pages of a file are dropped once to start writing them, and again before it is read.
    assert all(re.fullmatch("(s|dsdr+)*", each) for each in calls.values())
    found = "".join(calls.values())
    assert found.count("d") == 2 * len(list(path.iterdir()))
    # The folder is synced before the manifest and after it, and that above it at the end.
    assert found.replace("dsdr", "").count("s") == 3


def test_files_of_an_interrupted_save_are_not_in_the_next(tmp_path):
    left = temp_name(tmp_path / "step-00000002", "tmp")
    left.mkdir()
    for name in ("model.safetensors", "other"):
        (left / name).write_text("half of it")
    path = save_checkpoint(tmp_path, tiny.state_of())
    verify(path)
    assert not (path / "other").exists()
    assert list(tmp_path.iterdir()) == [path]


def test_run_folder_that_is_gone_is_not_made_by_a_save(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        save_checkpoint(tmp_path / "run" / "checkpoints", tiny.state_of())
    assert list(tmp_path.iterdir()) == []


def test_saving_a_step_again_replaces_its_checkpoint(tmp_path):
    state = tiny.state_of()
    save_checkpoint(tmp_path, state)
    state.metadata["second"] = True
    path = save_checkpoint(tmp_path, state)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert read_record(path)["metadata"] == {"second": True}


def test_failed_second_save_of_a_step_preserves_the_first(tmp_path, monkeypatch):
    state = tiny.state_of()
    path = save_checkpoint(tmp_path, state)
    rename = Path.rename

    def failing(self, target):
        if self.name.startswith(".tmp-") and not target.exists():  # the old one is renamed already
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(CheckpointError, match="Earlier checkpoints are unchanged"):
        save_checkpoint(tmp_path, state)
    assert list_checkpoints(tmp_path) == [path]
    load_checkpoint(path, tiny.state_of(steps=0))
