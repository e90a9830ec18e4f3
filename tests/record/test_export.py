"""Plain PyTorch loads exported weights without surestep."""

import json
import resource
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from surestep.base.errors import CheckpointError, ConfigError, CorruptCheckpointError
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.export import export
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint

PLAIN = """
import sys
import torch
from safetensors.torch import load_file
from torch import nn

def net():
    table = nn.Embedding(8, 4)
    head = nn.Linear(4, 8, bias=False)
    head.weight = table.weight
    return nn.Sequential(table, nn.BatchNorm1d(4), head)

wanted = torch.load("wanted.pt", weights_only=True)
for found in (torch.load("w.pt", weights_only=True), load_file("w.safetensors")):
    model = net()
    model.load_state_dict(found)
    assert model[0].weight is model[2].weight
    assert list(model.state_dict()) == list(wanted)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
assert not any(name.startswith("surestep") for name in sys.modules)
"""


def net():
    """A model with tied weights and with buffers."""
    names = {}
    exec(PLAIN.split("wanted =")[0], names)
    torch.manual_seed(0)
    return names["net"]()


def checkpoint(folder, model=None):
    return open_checkpoint(save_checkpoint(folder, tiny.state_of(model or tiny.model())))


def test_plain_torch_loads_an_export_strictly(tmp_path):
    model = net()
    model(torch.arange(8))
    found = checkpoint(tmp_path / "c", model)
    for name in ("w.pt", "w.safetensors"):
        exported = export(found, tmp_path / name)
        assert (exported.tensors, exported.tied) == (7, 1)
        assert exported.bytes == (tmp_path / name).stat().st_size
    torch.save(model.state_dict(), tmp_path / "wanted.pt")
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_task_starts_from_exported_weights(tmp_path, name):
    model = tiny.model(3)
    export(checkpoint(tmp_path / "c", model), tmp_path / name)
    session = tiny.prepare(tmp_path / "r", {"model": tiny.model(4), "init": tmp_path / name})
    assert torch.equal(tiny.weights(session.model), tiny.weights(model))
    session.close()


def test_exported_state_dict_holds_a_tied_tensor_once(tmp_path):
    model = net()
    export(checkpoint(tmp_path / "c", model), tmp_path / "w.pt")
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert found["0.weight"].data_ptr() == found["2.weight"].data_ptr()
    assert found["0.weight"].untyped_storage().nbytes() == 8 * 4 * 4
    assert found["1.weight"].untyped_storage().nbytes() == 4 * 4


def test_header_names_the_source_of_the_weights(tmp_path):
    x, y = tiny.data()
    run = tiny.fit(tmp_path / "mine", {"val": (x, y)}, epochs=1)
    run.export(tmp_path / "w.safetensors", "last")
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        about = file.metadata()
    assert (about["format"], about["run"], about["step"]) == ("pt", "mine", "3")
    assert json.loads(about["metrics"]) == run.last.metrics != {}


def test_average_is_exported_if_requested_or_if_it_was_evaluated(tmp_path):
    x, y = tiny.data()
    average = {"kind": "ema", "decay": 0.5}
    run = tiny.fit(tmp_path / "r", {"val": (x, y)}, average=average)
    steps = {run.last.step: False}  # a step means its weights
    files = {which: tmp_path / f"{which}.pt" for which in ("best", "last", "average", *steps)}
    averaged = {which: run.export(path, which).average for which, path in files.items()}
    assert averaged == {"best": True, "last": False, "average": True} | steps
    for which, name in (("last", "weights"), ("average", "average")):
        run.export(tmp_path / f"{which}.safetensors", which)
        with safe_open(tmp_path / f"{which}.safetensors", "pt") as file:
            assert file.metadata()["weights"] == name
    for which, path in files.items():
        model, other = tiny.model(7), tiny.model(8)
        run.load_model(model, which)
        other.load_state_dict(torch.load(path, weights_only=True))
        assert torch.equal(tiny.weights(model), tiny.weights(other))
    with pytest.raises(CheckpointError, match="has no averaged weights"):
        export(checkpoint(tmp_path / "c"), tmp_path / "no.pt", average=True)


def test_fp32_average_is_exported_in_the_dtype_of_the_weights(tmp_path):
    parts = {"model": tiny.model().bfloat16(), "train": tuple_of(torch.bfloat16)}
    run = tiny.fit(tmp_path / "r", parts, average={"kind": "ema"})
    run.export(tmp_path / "w.safetensors", "average")
    found = load_file(tmp_path / "w.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


def tuple_of(dtype):
    x, y = tiny.data()
    return x.to(dtype), y


def test_export_names_the_weights_that_the_checkpoint_lacks(tmp_path):
    model = tiny.model()
    model[0].requires_grad_(False)
    run = tiny.fit(tmp_path / "r", {"model": model}, checkpoint={"weights": "trained"})
    exported = run.export(tmp_path / "w.safetensors", "last")
    assert exported.lacks == ("0.bias", "0.weight")
    assert set(load_file(tmp_path / "w.safetensors")) == {"3.weight", "3.bias"}
    with safe_open(tmp_path / "w.safetensors", "pt") as file:
        assert json.loads(file.metadata()["lacks"]) == ["0.bias", "0.weight"]


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"seen": [1, 2]}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def test_extra_state_is_exported_to_a_state_dict_only(tmp_path):
    found = checkpoint(tmp_path / "c", nn.Sequential(Extra(4, 3)))
    export(found, tmp_path / "w.pt")
    model = nn.Sequential(Extra(4, 3))
    model.load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True))
    assert model[0].seen == [1, 2]
    with pytest.raises(CheckpointError, match=r"0\._extra_state\. Export it to .* \.pt"):
        export(found, tmp_path / "w.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "w.pt"]


def test_existing_file_is_replaced_only_with_overwrite(tmp_path):
    found, path = checkpoint(tmp_path / "c"), tmp_path / "w.pt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"exists\. Set --overwrite"):
        export(found, path)
    assert path.read_text() == "mine"
    export(found, path, overwrite=True)
    assert len(torch.load(path, weights_only=True)) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w.bin", r"the ending decides the format, and '.bin' is not one"),
        ("w", r"the ending decides the format, and 'none' is not one"),
        ("gone/w.pt", r"There is no folder .*gone to write w.pt into"),
    ],
)
def test_path_that_cannot_be_written_is_rejected(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        export(checkpoint(tmp_path / "c"), tmp_path / name)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_failed_export_preserves_the_existing_file(tmp_path, name):
    found, path = checkpoint(tmp_path / "c", nn.Linear(40, 10)), tmp_path / name
    path.write_text("mine")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"w\.\w+ could not be written: File too large\."):
            export(found, path, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", name]


def test_export_uses_the_newest_good_checkpoint_and_logs_the_damaged_one(tmp_path, caplog):
    run = tiny.fit(tmp_path / "r", checkpoint={"every": "1 epoch"})
    file = run.last.path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        CorruptCheckpointError, match=r"step-00000006 is damaged: model\.safetensors"
    ):
        run.export(tmp_path / "w.pt", 6)
    assert run.export(tmp_path / "w.pt", "last").step == 3
    assert "step-00000006 is damaged" in caplog.text


class Centered(nn.Module):
    """Subtracts a running mean, which no state dict holds."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.5)
        return self.linear(x - self.mean)


@pytest.mark.parametrize("which", ["best", "last"])
def test_buffers_that_no_state_dict_holds_are_named_and_left_out(tmp_path, which):
    x, y = tiny.data()
    parts = {"model": Centered(), "val": (x, y)}
    run = tiny.fit(tmp_path / "r", parts, average={"kind": "ema", "buffers": "average"})
    exported = run.export(tmp_path / "w.pt", which)
    assert (exported.average, exported.left_out) == (which == "best", ("mean",))
    state = torch.load(tmp_path / "w.pt", weights_only=True)
    assert state.keys() == Centered().state_dict().keys()
