import itertools
import json
from contextlib import ExitStack

import pytest
import torch
from safetensors.torch import save_file

from surestep.base.errors import CheckpointError, CorruptCheckpointError
from surestep.record.checkpoint import reader
from surestep.record.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    OLDEST,
    TensorEntry,
    TensorSlice,
    add_self_hash,
    read_manifest,
    verify,
)
from surestep.record.checkpoint.reader import open_checkpoint
from tests import tiny
from tests.record.checkpoint.on_disk import load_checkpoint, save_checkpoint

FILES = [MANIFEST, "state.json", "model.safetensors", "optimizer.safetensors"]


@pytest.fixture
def path(tmp_path):
    return save_checkpoint(tmp_path, tiny.state_of())


def rewritten(path, **changes):
    """Forge the manifest with correct hashes."""
    found = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(
        add_self_hash(json.dumps({**found, **changes, "sha256": "0" * 64}))
    )


def test_manifest_names_every_file_and_the_file_of_every_tensor(path):
    manifest = verify(path)
    assert sorted([MANIFEST, *manifest.files]) == sorted(file.name for file in path.iterdir())
    weight = manifest.tensors["model"]["0.weight"]
    assert (weight.dtype, weight.shape) == ("F32", (8, 4))
    assert weight.slices == (("model.safetensors", (0, 0), (8, 4)),)
    assert manifest == read_manifest(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "half", "empty", "one bit", "a link"])
def test_damaged_file_is_named_and_nothing_is_loaded(path, name, damage):
    file = path / name
    data = file.read_bytes()
    match damage:
        case "missing":
            file.unlink()
        case "half":
            file.write_bytes(data[: len(data) // 2])
        case "empty":
            file.write_bytes(b"")
        case "one bit":
            middle = len(data) // 2
            file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "a link":
            file.rename(path / "elsewhere")
            file.symlink_to(path / "elsewhere")
    state = tiny.state_of(steps=0)
    before = tiny.weights(state.model)
    with pytest.raises(CheckpointError, match=rf"step-00000002.*{name}"):
        load_checkpoint(path, state)
    assert torch.equal(tiny.weights(state.model), before)
    assert not state.optimizer.state


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "x"}', "null", '"text"', "[" * 10**6])
def test_invalid_manifest_is_rejected_by_name(path, content):
    (path / MANIFEST).write_text(content)
    with pytest.raises(CorruptCheckpointError, match=r"damaged: manifest\.json"):
        read_manifest(path)


def test_every_flipped_bit_of_a_manifest_is_detected(path):
    data = (path / MANIFEST).read_bytes()
    for place in range(0, len(data), 7):
        bit = 1 << place % 8
        (path / MANIFEST).write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        with pytest.raises(CorruptCheckpointError, match=r"damaged: manifest\.json"):
            read_manifest(path)


def test_format_below_one_is_rejected(path):
    rewritten(path, format=OLDEST - 1)
    with pytest.raises(CheckpointError, match="older than surestep's first release"):
        read_manifest(path)


def test_newer_format_is_rejected(path):
    rewritten(path, format=FORMAT + 1)
    with pytest.raises(CheckpointError, match=rf"has format {FORMAT + 1}.*pip install -U surestep"):
        read_manifest(path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../state.json": {"bytes": 1, "sha256": ""}}},
        {"files": {"state.json": {"bytes": -1, "sha256": ""}}},
        {"files": {}},
        {"tensors": {"model": {"w": {"dtype": "F32", "shape": [2], "slices": []}}}},
        {"tensors": {"model": {"w": {"dtype": "O", "shape": [], "slices": []}}}},
        {"tensors": []},
        {"step": "2"},
    ],
    ids=str,
)
def test_inconsistent_manifest_is_rejected(path, change):
    rewritten(path, **change)
    with pytest.raises(CorruptCheckpointError, match=r"damaged: manifest\.json"):
        read_manifest(path)


def in_slices(path, *boxes):
    """Store a weight of shape (8, 4) as these slices, given as (offset, shape)."""
    found = json.loads((path / MANIFEST).read_text())
    files = {f"{i}.safetensors": found["files"]["model.safetensors"] for i in range(len(boxes))}
    found["tensors"]["model"]["0.weight"]["slices"] = [
        {"file": file, "offset": list(offset), "shape": list(shape)}
        for file, (offset, shape) in zip(files, boxes, strict=True)
    ]
    rewritten(path, files={**found["files"], **files}, tensors=found["tensors"])


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (8, 4))],
        [((0, 0), (3, 4)), ((3, 0), (5, 4))],
        [((0, 0), (3, 1)), ((0, 1), (3, 3)), ((3, 0), (5, 2)), ((3, 2), (5, 2))],
        [((0, 0), (8, 4)), ((0, 2), (8, 0))],
    ],
    ids=["whole", "two", "four", "an empty one"],
)
def test_slices_that_cover_their_tensor_are_accepted(path, boxes):
    in_slices(path, *boxes)
    assert len(read_manifest(path).tensors["model"]["0.weight"].slices) == len(boxes)


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (4, 4))],
        [((0, 0), (8, 4)), ((0, 0), (8, 4))],
        [((0, 0), (4, 4)), ((3, 0), (4, 4))],
        [((0, 0), (3, 4)), ((2, 0), (5, 4))],
        [((4, 0), (8, 4))],
        [((0,), (32,))],
    ],
    ids=["a hole", "twice", "overlapping", "a hole of that size", "outside", "dimensions"],
)
def test_slices_that_do_not_cover_their_tensor_are_rejected(path, boxes):
    in_slices(path, *boxes)
    with pytest.raises(CheckpointError, match="slice"):
        read_manifest(path)


def test_any_part_of_a_tensor_is_read_from_its_slices(tmp_path):
    full = torch.arange(24.0).view(6, 4)
    boxes = [
        ((0, 0), (2, 1)),
        ((0, 1), (2, 3)),
        ((2, 0), (4, 2)),
        ((2, 2), (4, 2)),
        ((6, 0), (0, 4)),
    ]
    slices = [TensorSlice(f"{at}.safetensors", *box) for at, box in enumerate(boxes)]
    for file, (row, column), (rows, columns) in slices:
        part = full[row : row + rows, column : column + columns]
        save_file({"w": part.contiguous()}, tmp_path / file)
    entry = TensorEntry("F32", (6, 4), tuple(slices))
    with ExitStack() as stack:
        files = reader._OpenFiles(tmp_path, stack)
        assert torch.equal(files.read("w", entry), full)
        for row, column in itertools.product(range(6), range(4)):
            for rows, columns in itertools.product(range(7 - row), range(5 - column)):
                found = files.read_shard("w", entry, ((row, column), (rows, columns)))
                assert torch.equal(found, full[row : row + rows, column : column + columns])


def test_slices_that_differ_from_their_file_are_rejected(path):
    tensors = json.loads((path / MANIFEST).read_text())["tensors"]
    tensors["model"]["0.weight"]["shape"] = [4, 8]
    tensors["model"]["0.weight"]["slices"][0]["shape"] = [4, 8]
    rewritten(path, tensors=tensors)
    with pytest.raises(
        CorruptCheckpointError, match=r"model\.safetensors: '0\.weight' is .*\[8, 4\].*in it"
    ):
        open_checkpoint(path)
