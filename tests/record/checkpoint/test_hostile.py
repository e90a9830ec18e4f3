"""Hostile checkpoints with correct hashes are rejected by name, quickly, without running code."""

import copy
import json
import os
import pickle
import re
import shutil
import socket
import time

import pytest
import torch

from surestep.base.errors import CheckpointError
from surestep.record.checkpoint.discovery import (
    examine,
    find_newest_valid,
    scan_checkpoints,
)
from surestep.record.checkpoint.manifest import MANIFEST, RECORD
from surestep.record.checkpoint.reader import read_record
from surestep.record.safetensors_writer import write_tensors
from tests import tiny
from tests.record.checkpoint.forge import (
    forge,
    forge_record,
    manifest_of,
    seal,
    state_of,
)
from tests.record.checkpoint.on_disk import load_checkpoint, load_model, save_checkpoint

MODEL = "model.safetensors"
OPTIMIZER = "optimizers__model"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("good"), state_of())


@pytest.fixture
def path(good, tmp_path):
    return shutil.copytree(good, tmp_path / good.name)


def assert_rejected(path, match):
    """Check that every way to load rejects it and leaves the state unchanged."""
    state = state_of(seed=5)
    before = copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict()))
    place, begun = state.progress, time.process_time()
    with pytest.raises(CheckpointError, match=match) as caught:
        load_checkpoint(path, state)
    assert repr((state.model.state_dict(), state.optimizer.state_dict())) == repr(before)
    assert state.progress == place
    scan_checkpoints(path.parent)
    assert time.process_time() - begun < 5
    assert len(str(caught.value)) < 1000


def test_intact_checkpoint_is_loaded(path):
    state = state_of(seed=5)
    load_checkpoint(path, state)
    assert torch.equal(tiny.weights(state.model), tiny.weights(state_of().model))


WRONG = [None, True, -1, 1.5, 10**400, "x", [], {}]
COUNTS = (
    *(
        "progress__step",
        "progress__steps_taken",
        "progress__epoch",
        "progress__position",
        "counts__overflow",
    ),
    *("counts__clipped", "best__since_best", "plateau__bad", "scaler__growth_interval"),
)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:9])
def test_invalid_count_is_rejected(path, value):
    for name in COUNTS:
        forge_record(path, **{name: value})
        with pytest.raises(CheckpointError, match=f"it.{name.replace('__', '.')} is"):
            read_record(path)
        forge_record(path, **{name: 2})
    load_checkpoint(path, state_of(seed=5))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("progress__items", [None, True, "x", [], 10**400]),
        ("best__best", [True, "x", [], {}]),
        ("best__best_step", [-1, "x", 0.5]),
        ("best__metric", [0, [], {}]),
        ("best__latest", [None, [], "x", {"a": "x"}, {"a": {}}, {"a": [[None]]}]),
        ("best__measured", ["x", None, ["weights"], {}]),
        ("best__is_due", [None, 0, "true"]),
        ("plateau__scale", [None, "x", []]),
        ("cycle", [-1, "x", 1.5]),
        ("scaler__scale", [0, -1, "inf", "x", None, 1e308]),
        ("scaler___growth_tracker", [-1, 2**31, "x"]),
        ("metadata", [None, [], "x"]),
        ("aliases", [None, [], {"a": 1}, {"a": ["x"]}]),
        ("extra", [None, [], "x"]),
        ("base", [None, [], {"a": 1}]),
        ("optimizers", [None, [], {"model": 1}, {"model": {}}]),
        (f"{OPTIMIZER}__class", [None, 1, []]),
        (f"{OPTIMIZER}__values", [None, [], "x"]),
        (f"{OPTIMIZER}__groups", [None, {}, [1], [{}], [{"names": "x", "options": {}}]]),
    ],
)
def test_value_of_a_wrong_type_is_rejected(path, name, values):
    for value in values:
        forge_record(path, **{name: value})
        assert_rejected(path, r"state\.json: it")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("progress__step", [2**62, 2**41]),
        ("progress__steps_taken", [3, 2**62]),
        ("progress__epoch", [3, 2**62]),
        ("progress__items", ["nan", "inf", -1, 1e300, 2**62]),
        ("counts__nonfinite", [2**62]),
        ("counts__clipped", [2**62]),
        ("best__best", [None]),
        ("best__best_step", [None, 3, 2**62]),
        ("best__latest_step", [None, 0, 3, 2**62]),
        ("best__since_best", [4, 2**62]),
        ("plateau__bad", [4, 2**62]),
        ("plateau__cooling", [2**62]),
        ("plateau__scale", ["nan", "inf", -1, 2]),
        ("cycle", [2**62]),
        ("spikes__skipped_steps", [[[2, 1]], [[2**62, 1]]]),
    ],
)
def test_inconsistent_numbers_are_rejected(path, name, values):
    changed = {} if name == "progress__step" else {name: None}
    for value in values:
        forge_record(path, **{**changed, name: value})
        if name == "progress__step":  # the manifest and the folder have it too
            seal(path, {**manifest_of(path), "step": value})
        assert_rejected(path, r"state\.json: ")


@pytest.mark.parametrize(("name", "value"), [("position", 1), ("items", 1.0), ("epoch", 1)])
def test_counts_before_the_first_step_are_rejected(tmp_path, name, value):
    state = state_of(steps=0)
    state.best.reset()
    path = save_checkpoint(tmp_path, state)
    forge_record(path, **{f"progress__{name}": value})
    assert_rejected(path, f"progress.{name} is {value}")


@pytest.mark.parametrize("name", ["progress", "counts", "best", "plateau", "unknown"])
def test_missing_or_additional_key_is_rejected(path, name):
    record = json.loads((path / RECORD).read_text())
    for other in (
        {**record, "a\x1b[2J": 1},
        {key: value for key, value in record.items() if key != name},
    ):
        if other != record:
            forge(path, RECORD, json.dumps(other).encode())
            assert_rejected(path, r"state\.json: it (lacks|has)")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"aliases": {"0.weight": "9.weight"}}, "lacks the tensor"),
        ({"aliases": {"a": "b", "b": "a"}}, "lacks the tensor"),
        ({"extra": {"0.weight": 1}}, "an extra state that is a tensor as well"),
        ({"extra": {"x": 1}}, r"has \['x'\] that this model does not have"),
        ({"base": {"0.weight": "x"}}, "frozen base"),
        ({f"{OPTIMIZER}__values": {"model/0.weight/step": {"$tensor": "no"}}}, "lacks the tensor"),
        ({f"{OPTIMIZER}__values": {"model/0.weight/step": {"$tensor": []}}}, "lacks the tensor"),
        ({f"{OPTIMIZER}__groups": []}, r"no optimizer state for 0\.weight"),
        ({f"{OPTIMIZER}__class": "SGD"}, "state of SGD"),
        ({"optimizers": {}}, "holds the optimizers"),
        ({"progress__step": 3}, "it is of step 3, not 2"),
    ],
    ids=str,
)
def test_inconsistent_record_is_rejected(path, changes, match):
    forge_record(path, **changes)
    assert_rejected(path, match)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("params", [1]),
        ("lr", 0.1),
        ("__class__", "x"),
        ("no_such_option", 1),
        ("fused", "yes"),
        ("betas", [0.9]),
        ("betas", [0.9, "x"]),
        ("betas", 0.9),
        ("eps", "x"),
        ("eps", None),
        ("weight_decay", [0.1]),
        ("amsgrad", 1),
    ],
)
def test_unknown_optimizer_option_is_rejected(path, option, value):
    groups = json.loads((path / RECORD).read_text())["optimizers"]["model"]["groups"]
    groups[0]["options"][option] = value
    forge_record(path, **{f"{OPTIMIZER}__groups": groups})
    assert_rejected(path, f"optimizer's option '{option}'")


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"",
        b"NaN",
        b'{"progress": {}, "progress": {}}',
        b"[" * 10**6,
        b'{"a":' * 200 + b"1" + b"}" * 200,
        b"9" * 10_000,
        b"1e999",
        b'"\\ud800"',
        b"[" + b"0," * 10**5 + b"0]",
    ],
    ids=lambda text: text[:8],
)
def test_text_that_is_not_a_record_is_rejected(path, text):
    forge(path, RECORD, text)
    assert_rejected(path, r"damaged: state\.json")


def test_too_large_file_is_rejected_before_it_is_read(path):
    for name in (RECORD, MANIFEST):
        with (path / name).open("r+b") as file:
            file.truncate(2**40)  # sparse: it uses no disk space
        begun = time.process_time()
        assert_rejected(path, rf"{name}: it has 1,099,511,627,776 bytes")
        assert time.process_time() - begun < 1


@pytest.mark.parametrize("name", [MANIFEST, RECORD, MODEL])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "link", "loop", "hard link"])
def test_only_regular_files_are_opened(path, name, kind, monkeypatch):
    file = path / name
    file.rename(path / "kept")
    match kind:
        case "pipe":
            os.mkfifo(file)  # opening one waits for its writer
        case "socket":
            monkeypatch.chdir(path)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(name)
        case "folder":
            file.mkdir()
        case "link":
            file.symlink_to(path / "kept")
        case "loop":
            file.symlink_to(file)
        case "hard link":  # another name of the same bytes, which are verified
            os.link(path / "kept", file)
            load_checkpoint(path, state_of(seed=5))
            return
    assert_rejected(path, rf"damaged: {name}")


NAMES = ["../x", "/etc/passwd", "a/b", "a\0b", "a\nb", "", ".", "..", "é", "x" * 300, MANIFEST]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_file_name_with_a_path_is_rejected(path, name):
    manifest = manifest_of(path)
    manifest["files"][name] = manifest["files"][MODEL]
    seal(path, manifest, rehash=False)
    assert_rejected(path, r"manifest\.json: .*not a file name")


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize("name", [MODEL, RECORD, MANIFEST, "optimizer.safetensors"])
def test_pickle_named_as_a_checkpoint_file_is_not_unpickled(path, name, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    torch.save({"0.weight": Bomb()}, path / "bomb")
    for data in (pickle.dumps(Bomb()), (path / "bomb").read_bytes()):
        if name == MANIFEST:
            (path / name).write_bytes(data)
        else:
            forge(path, name, data)
        assert_rejected(path, f"damaged: {name}")
        with pytest.raises(CheckpointError):
            load_model(path, state_of().model)
    assert not (tmp_path / "exploded").exists()


def header(**tensors):
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


F32 = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (2**63).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        header(),
        header(a=F32),
        header(a={**F32, "data_offsets": [4, 0]}) + bytes(4),
        header(a={**F32, "data_offsets": [0, 2**62]}) + bytes(4),
        header(a=F32, b=F32) + bytes(4),
        header(a={**F32, "data_offsets": [4, 8]}) + bytes(8),
        header(a={**F32, "shape": [2**62, 2**62]}) + bytes(4),
        header(a={**F32, "shape": [-1]}) + bytes(4),
        header(a={**F32, "dtype": "O"}) + bytes(4),
        header(a=F32) + bytes(400),
        (4).to_bytes(8, "little") + b"[[[[",
        header(a={**F32, "dtype": "x" * 10**5}) + bytes(4),
        (10**5).to_bytes(8, "little") + b"[" * 10**5,
    ],
    ids=lambda data: repr(data[:60]),
)
def test_invalid_safetensors_header_is_rejected(path, data):
    forge(path, MODEL, data)
    assert_rejected(path, rf"damaged: {MODEL}")


def rewritten(path, tensors):
    """Replace the tensors of the model file; the manifest has their hash but not their shapes."""
    (path / MODEL).unlink()
    write_tensors(path / MODEL, tensors)
    seal(path, manifest_of(path))


def test_files_that_differ_from_the_manifest_are_rejected(path):
    own = dict(state_of().model.state_dict())
    for match, other in {
        "'0.weight' is not there": {key: own[key] for key in own if key != "0.weight"},
        "'more' is": {**own, "more": torch.zeros(1)},
        r"'0.weight' is \('I32'": {**own, "0.weight": own["0.weight"].int()},
        r"'0.weight' is .*\[4, 3\]": {**own, "0.weight": own["0.weight"].T.contiguous()},
    }.items():
        rewritten(path, other)
        assert_rejected(path, f"{MODEL}: {match}")
        found = examine(path, every_byte=True)
        assert found.verified is False
        assert re.search(f"{MODEL}: {match}", found.problems[0])


def edited(path, kind, name, **stored):
    """Change the manifest entry of a tensor and of its only slice."""
    manifest = manifest_of(path)
    entry = manifest["tensors"][kind][name]
    entry.update(stored)
    entry["slices"][0].update({key: stored[key] for key in stored if key == "shape"})
    seal(path, manifest)


@pytest.mark.parametrize(
    ("kind", "name", "value", "match"),
    [
        ("model", "0.weight", torch.zeros(3, 4).cfloat(), "complex64 in .* but of torch.float32"),
        ("model", "1.num_batches_tracked", torch.zeros(()), "but of torch.int64"),
        ("model", "0.weight", torch.zeros(4, 3), r"is \(4, 3\) in .* but \(3, 4\) here"),
        ("average", "0.weight", torch.zeros(3, 4).cfloat(), "complex64"),
        ("average", "0.weight", torch.zeros(4, 3), "of a different model"),
        ("optimizer", "model/0.weight/exp_avg", torch.zeros(1), "holds exp_avg of 0.weight"),
        ("optimizer", "model/0.weight/exp_avg_sq", torch.zeros(3, 4).int(), "holds exp_avg_sq"),
        ("optimizer", "model/0.weight/step", torch.zeros(9), "holds step of 0.weight"),
    ],
)
def test_tensor_that_does_not_fit_is_rejected(path, kind, name, value, match):
    """A fused kernel would read past the end of a short one."""
    from safetensors.torch import load_file

    from surestep.record.safetensors_writer import NAMES as DTYPE_NAMES

    file = path / f"{kind}.safetensors"
    tensors = {**load_file(file), name: value}
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    file.unlink()
    write_tensors(file, tensors)
    manifest = manifest_of(path)
    entry = manifest["tensors"][kind][name]
    entry.update(dtype=DTYPE_NAMES[str(value.dtype)], shape=list(value.shape))
    entry["slices"][0].update(shape=list(value.shape), offset=[0] * value.dim())
    seal(path, manifest)
    assert_rejected(path, match)


def test_many_slices_are_checked_in_linear_time(path):
    """A pairwise comparison would take minutes."""
    manifest = manifest_of(path)
    many = {f"f{i}": manifest["files"][MODEL] for i in range(6_000)}
    manifest["files"] |= many
    manifest["tensors"]["model"]["0.weight"] = {
        "dtype": "F32",
        "shape": [6_000],
        "slices": [{"file": name, "offset": [0], "shape": [1]} for name in many],
    }
    seal(path, manifest, rehash=False)
    assert_rejected(path, "slices that do not make up their tensor")


def test_more_dimensions_than_torch_supports_are_rejected(path):
    edited(path, "model", "0.weight", shape=[1] * 65)
    assert_rejected(path, "65 dimensions")


def test_file_outside_the_manifest_is_ignored(path):
    (path / "more.safetensors").write_bytes(b"x")
    os.mkfifo(path / "pipe")
    load_checkpoint(path, state_of(seed=5))


def test_wrong_sizes_in_the_manifest_are_rejected(path):
    for size in (0, 7, 2**62, -1, "x", None, True):
        manifest = manifest_of(path)
        manifest["files"][MODEL]["bytes"] = size
        seal(path, manifest, rehash=False)
        assert_rejected(path, "damaged")


def test_hostile_newest_checkpoint_is_skipped(path):
    shutil.copytree(path, path.with_name("step-00000003"))
    forge_record(path.with_name("step-00000003"), progress__epoch="x")
    found = find_newest_valid(path.parent)
    assert found.opened is not None
    assert found.opened.path == path
