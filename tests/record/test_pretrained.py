"""Which files load as initial weights, which do not, and that no file runs code."""

import hashlib
import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

import surestep
from surestep.base.errors import CheckpointError
from surestep.engine.task.init_weights import as_init
from surestep.record.pretrained import load_init_weights
from tests import tiny


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


def weights(seed=5):
    return tiny.model(seed).state_dict()


def write(tmp_path, name, content=None):
    path = tmp_path / name
    tensors = weights() if content is None else content
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


def loaded(path):
    model = tiny.model(0)
    started = load_init_weights(model, as_init(path))
    assert torch.equal(tiny.weights(model), tiny.weights(tiny.model(5)))
    return started


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "w.bin", "w.ckpt"])
def test_weight_files_are_read_with_their_hash(name, tmp_path):
    path = write(tmp_path, name)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded(path).files == {str(path): sha}
    assert loaded(str(path)).files == {str(path): sha}


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {f"model.{name}": v for name, v in weights().items()}, "epoch": 3},
        {"model": weights(), "optimizer": {"state": {}}, "step": torch.tensor(7)},
        {"model": {"state_dict": weights()}},
    ],
    ids=["lightning", "with an optimizer", "twice nested"],
)
def test_nested_state_dict_is_found(content, tmp_path):
    loaded(write(tmp_path, "w.ckpt", content))


def test_state_dict_in_memory_is_accepted():
    assert loaded(weights()).files == {}


def test_folders_of_hugging_face_models_are_read(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole, "model.safetensors")
    loaded(whole)
    write(whole, "pytorch_model.bin", {name: tensor + 1 for name, tensor in weights().items()})
    loaded(whole)  # the safetensors of both
    parts = tmp_path / "parts"
    parts.mkdir()
    names = list(weights())
    for number, kept in enumerate((names[:1], names[1:])):
        write(parts, f"{number}.safetensors", {name: weights()[name] for name in kept})
    where = {name: f"{int(name in names[1:])}.safetensors" for name in names}
    index = parts / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert len(loaded(parts).files) == 2
    loaded(index)
    index.write_text(json.dumps({"weight_map": {"a": "../whole/model.safetensors"}}))
    with pytest.raises(CheckpointError, match="not a file beside it"):
        loaded(parts)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match=r"cannot be read: KeyError\('weight_map'\)"):
        loaded(parts)


def test_weights_are_read_from_a_run_and_from_a_checkpoint(tmp_path):
    run = tiny.fit(tmp_path / "run", {"model": tiny.model(5)}, max_steps=1)
    for path in (run.path, run.best.path):
        model = tiny.model(0)
        load_init_weights(model, as_init(path))
        run.load_model(other := tiny.model(1))
        assert torch.equal(tiny.weights(model), tiny.weights(other))


def test_hostile_file_runs_no_code(tmp_path):
    path = write(tmp_path, "w.pt", {"a": Hostile(tmp_path / "ran")})
    with pytest.raises(CheckpointError, match=r"needs (posix|nt).system, and .* run code"):
        loaded(path)
    path.write_bytes(pickle.dumps({"a": Hostile(tmp_path / "ran")}, protocol=2))
    with pytest.raises(CheckpointError, match=r"would run code|damaged"):
        loaded(path)
    assert not (tmp_path / "ran").exists()


def test_pickled_model_is_rejected_with_the_code_to_convert_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"torch.save\(model.state_dict\(\), 'weights.pt'\)"):
        loaded(write(tmp_path, "w.pt", tiny.model(5)))


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("size", [0, 30, 0.5], ids=["empty", "beginning", "half"])
def test_truncated_file_is_rejected(name, size, tmp_path):
    path = write(tmp_path, name)
    data = path.read_bytes()
    path.write_bytes(data[: int(size * len(data)) if isinstance(size, float) else size])
    with pytest.raises(CheckpointError, match=r"damaged or not a .* again"):
        loaded(path)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "none.pt", "does not exist. Check the path"),
        (lambda folder: folder, "is a folder without weights: it has none of model.safetensors"),
        (lambda folder: write(folder, "w.npz"), "has an unknown format. Known: .safetensors"),
        (lambda folder: write(folder, "w.pt", {}), "no tensors by name: it has a dict"),
        (lambda folder: write(folder, "w.pt", [1]), "no tensors by name: it has a list"),
        (lambda folder: write(folder, "w.pt", {"epoch": 3}), "it has epoch. Use a state dict"),
        (lambda folder: {"epoch": 3}, "The state dict|the state dict has no tensors"),
    ],
)
def test_file_without_weights_is_rejected(make, sentence, tmp_path):
    with pytest.raises(CheckpointError, match=sentence):
        loaded(make(tmp_path))


def test_run_without_a_checkpoint_is_rejected(tmp_path):
    tiny.prepare(tmp_path / "run").close()
    (tmp_path / "run" / "checkpoints").mkdir(exist_ok=True)
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        loaded(tmp_path / "run")
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="is not a run folder"):
        loaded(tmp_path / "run")


def test_init_weights_equal_weights_loaded_before_training(tmp_path):
    path = write(tmp_path, "w.safetensors")
    before = tiny.fit(tmp_path / "a", {"model": tiny.model(5)}, max_steps=4)
    after = tiny.fit(tmp_path / "b", {"model": lambda: tiny.model(0), "init": path}, max_steps=4)
    before.load_model(expected := tiny.model(1))
    after.load_model(found := tiny.model(2))
    assert torch.equal(tiny.weights(expected), tiny.weights(found))
    (event,) = [event for event in after.events() if event["event"] == "init"]
    assert event["files"] == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    assert len(event["loaded"]) == 4


def test_resumed_run_does_not_load_initial_weights_again(tmp_path):
    path = write(tmp_path, "w.pt")
    parts = {"model": tiny.model(0), "init": path}
    with tiny.prepare(tmp_path / "run", parts) as session:
        next(session.steps())
        session.save()
        there = tiny.weights(session.model)
    path.unlink()
    with tiny.prepare(tmp_path / "run", {**parts, "model": tiny.model(0)}) as session:
        assert torch.equal(tiny.weights(session.model), there)
    assert [event["event"] for event in surestep.Run(tmp_path / "run").events()].count("init") == 1
