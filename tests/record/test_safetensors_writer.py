import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.writer import CheckpointFiles
from surestep.record.safetensors_writer import DTYPES, dtype_of, write_tensors
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint


def every_type():
    """A tensor of every dtype that safetensors supports, of odd sizes."""
    torch.manual_seed(0)
    made = {name: torch.randn(3, 5).mul(9).to(dtype_of(name)) for name in DTYPES}
    return {**made, "none": torch.zeros(0, 4), "one": torch.tensor(7), 'å"\n': torch.ones(1)}


def test_safetensors_library_reads_every_written_dtype(tmp_path):
    tensors = every_type()
    write_tensors(tmp_path / "a.safetensors", tensors)
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].shape, found[name].dtype) == (tensor.shape, tensor.dtype)
        assert found[name].reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


def test_tensor_bytes_equal_those_of_the_safetensors_library(tmp_path):
    tensors = every_type()
    file = write_tensors(tmp_path / "a", tensors)
    save_file(tensors, tmp_path / "b")
    ours, theirs = (tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()
    assert file.bytes == len(ours)
    begin = 8 + int.from_bytes(theirs[:8], "little")
    assert len(ours[8 + int.from_bytes(ours[:8], "little") :]) == len(theirs[begin:])


def test_existing_file_is_not_overwritten(tmp_path):
    write_tensors(tmp_path / "a", {})
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "a", {})


def test_unsupported_dtype_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"w is a tensor of torch\.complex128.*Known: "):
        write_tensors(tmp_path / "a", {"w": torch.zeros(1, dtype=torch.complex128)})


def test_checkpoint_hash_is_of_the_tensors_in_memory(tmp_path, monkeypatch):
    """A disk that returns other bytes than it received is detected before the rename."""
    honest = CheckpointFiles.write

    def forgetful(written, name, parts):
        honest(written, name, parts)
        if name == "model.safetensors":
            with (written.folder / name).open("r+b") as damaged:
                damaged.seek(-1, 2)
                damaged.write(b"\xff")

    monkeypatch.setattr(CheckpointFiles, "write", forgetful)
    with pytest.raises(CheckpointError, match=r"damaged: model\.safetensors: it has other bytes"):
        save_checkpoint(tmp_path, tiny.state_of())
    assert list(tmp_path.iterdir()) == []


def test_partial_writes_are_completed(tmp_path, monkeypatch):
    tensors = {str(i): torch.full((i % 7,), float(i)) for i in range(1200)}
    whole = write_tensors(tmp_path / "whole", tensors)
    writev = os.writev

    def little(descriptor, parts):
        assert len(parts) <= 1024  # the limit of Linux
        return writev(descriptor, [b"".join(parts)[:1000]])

    monkeypatch.setattr(os, "writev", little)
    assert write_tensors(tmp_path / "parts", tensors) == whole
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
