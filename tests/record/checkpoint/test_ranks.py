"""A state that ranks share is saved and loaded by all of them, each its own part.

One launch of four ranks does all; two of them are a world of their own within it.
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

ROWS = {"four": 4, "hybrid": 2, "two": 2}  # ranks that cut a tensor
STEP = "step-00000003"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
LEFT = {"model/head.weight", *(f"model/norm.{name}" for name in STATISTICS)}  # with the model


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
def test_a_checkpoint_is_loaded_by_any_number_of_ranks_bit_for_bit(folder, ranks, source, target):
    held = whole(state_of(0, steps=3)) if source == "one" else ranks[0]["held"][source]
    for rank in range(2 if target == "two" else 4):
        found = ranks[rank]["loaded"][source, target]
        assert found["step"] == 3
        assert same(found["whole"], held)


@pytest.mark.parametrize("source", ROWS)
def test_one_process_loads_what_ranks_wrote(folder, ranks, source):
    verify(folder / source / STEP)
    state = state_of(1)
    load_checkpoint(folder / source / STEP, state)
    assert same(whole(state), ranks[0]["held"][source])


@pytest.mark.parametrize("source", ROWS)
def test_the_files_of_a_rank_hold_its_shard_alone(folder, source):
    manifest = read_manifest(folder / source / STEP)
    stored = manifest.tensors["model"]["inner.weight"]
    cut = ROWS[source]
    assert len(stored.slices) == min(cut, 3 if cut == 4 else cut)  # 5 rows: 2, 2, 1 and none
    assert len({each.file for each in stored.slices}) == len(stored.slices)
    assert all(each.shape[0] <= -(-5 // cut) for each in stored.slices)
    (buffer,) = manifest.tensors["model"]["norm.running_mean"].slices
    assert buffer.file == "model.rank-00000.safetensors"
    sizes = {name: each.bytes for name, each in manifest.files.items() if "rank-" in name}
    assert len(sizes) == 2 * cut


def test_copies_are_written_once(folder):
    files = read_manifest(folder / "hybrid" / STEP).files
    assert {name for name in files if name.startswith("model")} == {
        *("model.rank-00000.safetensors", "model.rank-00001.safetensors")
    }


@pytest.mark.parametrize("target", ROWS)
def test_a_rank_reads_no_more_than_its_shard(ranks, target):
    held = ranks[0]["held"]["four"]
    total = sum(each.numel() for each in held.values()) - held["model/head.weight"].numel()
    cut = ROWS[target]
    for rank in range(2 if target == "two" else 4):
        for source in [*ROWS, "one"]:
            read = ranks[rank]["loaded"][source, target]["read"]
            assert read <= total * 1.35 / cut + 40  # uneven rows, and what is not cut


def test_the_trouble_of_one_rank_is_that_of_all_and_leaves_nothing(folder, ranks):
    for each in ranks:
        said = each["words"]["full"]
        assert "rank 2: No space left on device. Earlier checkpoints are unchanged." in said
        assert "'strange/thing' is a object" in each["words"]["unlike"]
        assert each["again"] == str(folder / "full" / STEP)
    assert [each.name for each in (folder / "full").iterdir()] == [STEP]
    assert list((folder / "unlike").iterdir()) == []


def test_all_ranks_end_if_one_of_them_rejects_a_declared_state(ranks):
    errors = [each["words"]["rejected"] for each in ranks]
    assert "CheckpointError: counter does not take the state" in errors.pop(2)
    for error in errors:
        assert error.startswith("ParallelError: Rank 2 could not load ")
        assert "ValueError: an old count" in error


def test_a_way_that_keeps_its_tensors_apart_is_saved_and_loaded_one_by_one(folder, ranks):
    for each in ranks:
        assert each["kept"]["alive"] <= 2
        found = each["kept"]["whole"]
        held = ranks[0]["held"]["four"]
        assert held.keys() - found.keys() == LEFT
        assert all(torch.equal(found[name], held[name]) for name in found)
    manifest = verify(folder / "kept" / STEP)
    files = {stored.slices[0].file for stored in manifest.tensors["model"].values()}
    assert len(files) == 4
    assert all(len(stored.slices) == 1 for stored in manifest.tensors["model"].values())
    state = state_of(1)
    load_checkpoint(folder / "kept" / STEP, state)
    assert same(whole(state), ranks[0]["kept"]["held"])


def test_tied_weights_of_which_a_rank_has_nothing_are_known_as_tied(folder):
    record = open_checkpoint(folder / "four" / STEP).record
    assert record["aliases"] == {"head.weight": "embed.weight"}
    text = (folder / "four" / STEP / "manifest.json").read_text()
    assert json.loads(text)["format"] == FORMAT


@pytest.fixture
def most_alive(monkeypatch):
    """Count how many tensors that were read are there at once."""
    alive, most, read = weakref.WeakSet(), [0], opened._OpenFiles.read

    def counted(*args):
        found = read(*args)
        alive.add(found)
        most[0] = max(most[0], len(alive))
        return found

    monkeypatch.setattr(opened._OpenFiles, "read", counted)
    return most


def test_an_export_is_the_whole_model_and_takes_one_tensor_at_a_time(
    folder, ranks, tmp_path, most_alive
):
    exported = export(open_checkpoint(folder / "four" / STEP), tmp_path / "w.safetensors")
    assert most_alive == [1]
    held = {n: e for n, e in ranks[0]["held"]["four"].items() if n.startswith("model/")}
    found = {f"model/{name}": each for name, each in load_file(exported.path).items()}
    assert same(found, held)


def test_two_are_compared_one_tensor_at_a_time(folder, most_alive):
    pair = [open_checkpoint(folder / name / STEP) for name in ("four", "two")]
    found = differences(*pair)
    assert not found.unmatched
    assert most_alive[0] <= 4
    assert differences(pair[0], pair[0]).same


def test_another_run_starts_from_the_weights_alone(folder, ranks):
    path = folder / "four" / STEP
    model = Net()
    started = load_init_weights(model, path)
    held = ranks[0]["held"]["four"]
    assert all(torch.equal(each, held[f"model/{n}"]) for n, each in model.state_dict().items())
    assert Path(next(iter(started.files))).name == "model.rank-00000.safetensors"
    assert len(started.files) == 4


def test_a_frozen_tensor_that_ranks_share_has_the_fingerprint_of_the_whole(ranks):
    for rank, name in ((0, "two"), (1, "two"), (2, "hybrid"), (3, "hybrid")):
        held = ranks[0]["held"][name]["model/inner.weight"]
        assert ranks[rank]["print"] == fingerprint(held)


def test_another_optimizer_is_refused_with_what_to_type_for_the_weights(folder):
    state = state_of(1)
    state.optimizers["model"] = torch.optim.SGD(state.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match=r"of AdamW, .* is SGD\. .*Task\(init='.*00003'\)"):
        load_checkpoint(folder / "four" / STEP, state)


def test_a_rank_that_is_gone_costs_the_save_and_leaves_nothing(folder, ranks):
    for each in ranks[:3]:
        assert "not every rank answered" in each["gone"]
    assert list((folder / "gone").iterdir()) == []
