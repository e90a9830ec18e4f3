"""Ranks save and load a sharded state together, and each rank handles its own shards.

All tests share one launch of four ranks; two of the ranks also form a smaller world.
"""

import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from surestep.base.errors import CheckpointError
from surestep.engine.model.frozen_weights import fingerprint
from surestep.record.checkpoint import reader as opened
from surestep.record.checkpoint.diff import differences
from surestep.record.checkpoint.manifest import FORMAT, read_manifest, verify
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.export import export
from surestep.record.pretrained import load_init_weights
from tests.multi_rank.torchrun import check_ended_well, launch
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint
from tests.record.checkpoint.ranks import Net, state_of, whole

ROWS = {"four": 4, "hybrid": 2, "two": 2}  # ranks that share a tensor
STEP = "step-00000003"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
LEFT = {
    "model/head.weight",
    *(f"model/norm.{name}" for name in STATISTICS),
}  # they stay in the model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "one").mkdir()
    save_checkpoint(folder / "one", state_of(0, steps=3))
    check_ended_well(launch("4", "-m", "tests.record.checkpoint.ranks", str(folder)))
    return folder


@pytest.fixture(scope="module")
def ranks(folder):
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(4)]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("source", [*ROWS, "one"])
@pytest.mark.parametrize("target", ROWS)
def test_any_number_of_ranks_loads_a_checkpoint_bitwise(folder, ranks, source, target):
    expected = whole(state_of(0, steps=3)) if source == "one" else ranks[0]["expected"][source]
    for rank in range(2 if target == "two" else 4):
        found = ranks[rank]["loaded"][source, target]
        assert found["step"] == 3
        assert same(found["whole"], expected)


@pytest.mark.parametrize("source", ROWS)
def test_single_process_loads_the_checkpoint_of_several_ranks(folder, ranks, source):
    verify(folder / source / STEP)
    state = state_of(1)
    load_checkpoint(folder / source / STEP, state)
    assert same(whole(state), ranks[0]["expected"][source])


@pytest.mark.parametrize("source", ROWS)
def test_files_of_a_rank_contain_only_its_shards(folder, source):
    manifest = read_manifest(folder / source / STEP)
    stored = manifest.tensors["model"]["inner.weight"]
    cut = ROWS[source]
    assert len(stored.slices) == min(cut, 3 if cut == 4 else cut)  # 5 rows: 2, 2, 1 and none
    assert len({stored_slice.file for stored_slice in stored.slices}) == len(stored.slices)
    assert all(stored_slice.shape[0] <= -(-5 // cut) for stored_slice in stored.slices)
    (buffer,) = manifest.tensors["model"]["norm.running_mean"].slices
    assert buffer.file == "model.rank-00000.safetensors"
    sizes = {name: file.bytes for name, file in manifest.files.items() if "rank-" in name}
    assert len(sizes) == 2 * cut


def test_replicas_are_written_once(folder):
    files = read_manifest(folder / "hybrid" / STEP).files
    assert {name for name in files if name.startswith("model")} == {
        *("model.rank-00000.safetensors", "model.rank-00001.safetensors")
    }


@pytest.mark.parametrize("target", ROWS)
def test_rank_reads_only_its_shards(ranks, target):
    expected = ranks[0]["expected"]["four"]
    total = (
        sum(tensor.numel() for tensor in expected.values()) - expected["model/head.weight"].numel()
    )
    cut = ROWS[target]
    for rank in range(2 if target == "two" else 4):
        for source in [*ROWS, "one"]:
            read = ranks[rank]["loaded"][source, target]["read"]
            assert read <= total * 1.35 / cut + 40  # uneven rows, and tensors that are not sharded


def test_ranks_without_a_thread_are_named(folder, ranks):
    for result in ranks:
        assert result["words"]["waits"] == (
            "Checkpoints are written between two steps from step 3 on, since their thread could "
            "not be started on the ranks [1, 3]: can't start new thread of rank 1. Training waits "
            "for them."
        )
    assert [path.name for path in (folder / "waits").iterdir()] == [STEP]


def test_error_on_one_rank_is_raised_on_all_ranks_and_leaves_no_files(folder, ranks):
    for result in ranks:
        message = result["words"]["full"]
        assert "rank 2: No space left on device. Earlier checkpoints are unchanged." in message
        assert "'strange/thing' is a object" in result["words"]["unlike"]
        assert result["again"] == str(folder / "full" / STEP)
    assert [path.name for path in (folder / "full").iterdir()] == [STEP]
    assert list((folder / "unlike").iterdir()) == []


def test_all_ranks_end_if_one_of_them_rejects_a_declared_state(ranks):
    errors = [result["words"]["rejected"] for result in ranks]
    assert "CheckpointError: counter does not take the state" in errors.pop(2)
    for error in errors:
        assert error.startswith("ParallelError: Rank 2 could not load ")
        assert "ValueError: an old count" in error


def test_tensors_of_a_keeper_are_saved_and_loaded_one_at_a_time(folder, ranks):
    for result in ranks:
        assert result["kept"]["alive"] <= 2
        found = result["kept"]["whole"]
        expected = ranks[0]["expected"]["four"]
        assert expected.keys() - found.keys() == LEFT
        assert all(torch.equal(found[name], expected[name]) for name in found)
    manifest = verify(folder / "kept" / STEP)
    files = {stored.slices[0].file for stored in manifest.tensors["model"].values()}
    assert len(files) == 4
    assert all(len(stored.slices) == 1 for stored in manifest.tensors["model"].values())
    state = state_of(1)
    load_checkpoint(folder / "kept" / STEP, state)
    assert same(whole(state), ranks[0]["kept"]["expected"])


def test_tied_weights_are_detected_on_a_rank_without_a_shard(folder):
    record = open_checkpoint(folder / "four" / STEP).record
    assert record["aliases"] == {"head.weight": "embed.weight"}
    text = (folder / "four" / STEP / "manifest.json").read_text()
    assert json.loads(text)["format"] == FORMAT


@pytest.fixture
def most_alive(monkeypatch):
    """Track the peak number of read tensors in memory at once."""
    alive, most, read = weakref.WeakSet(), [0], opened._OpenFiles.read

    def counted(*args):
        found = read(*args)
        alive.add(found)
        most[0] = max(most[0], len(alive))
        return found

    monkeypatch.setattr(opened._OpenFiles, "read", counted)
    return most


def test_export_is_the_full_model_and_reads_one_tensor_at_a_time(
    folder, ranks, tmp_path, most_alive
):
    exported = export(open_checkpoint(folder / "four" / STEP), tmp_path / "w.safetensors")
    assert most_alive == [1]
    expected = {n: e for n, e in ranks[0]["expected"]["four"].items() if n.startswith("model/")}
    found = {f"model/{name}": tensor for name, tensor in load_file(exported.path).items()}
    assert same(found, expected)


def test_checkpoints_are_compared_one_tensor_at_a_time(folder, most_alive):
    pair = [open_checkpoint(folder / name / STEP) for name in ("four", "two")]
    found = differences(*pair)
    assert not found.unmatched
    assert most_alive[0] <= 4
    assert differences(pair[0], pair[0]).same


def test_new_run_starts_from_only_the_weights(folder, ranks):
    path = folder / "four" / STEP
    model = Net()
    started = load_init_weights(model, path)
    expected = ranks[0]["expected"]["four"]
    assert all(
        torch.equal(tensor, expected[f"model/{n}"]) for n, tensor in model.state_dict().items()
    )
    assert Path(next(iter(started.files))).name == "model.rank-00000.safetensors"
    assert len(started.files) == 4


def test_sharded_frozen_tensor_has_the_fingerprint_of_the_full_one(ranks):
    for rank, name in ((0, "two"), (1, "two"), (2, "hybrid"), (3, "hybrid")):
        expected = ranks[0]["expected"][name]["model/inner.weight"]
        assert ranks[rank]["print"] == fingerprint(expected)


def test_different_optimizer_is_rejected_with_the_option_to_load_weights(folder):
    state = state_of(1)
    state.optimizers["model"] = torch.optim.SGD(state.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match=r"of AdamW, .* is SGD\. .*Task\(init='.*00003'\)"):
        load_checkpoint(folder / "four" / STEP, state)


def test_save_fails_without_files_if_a_rank_is_gone(folder, ranks):
    for result in ranks[:3]:
        assert "not every rank answered" in result["gone"]
    assert list((folder / "gone").iterdir()) == []
