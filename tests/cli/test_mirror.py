"""Commands with the address of a mirror, on a machine that has nothing else."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from surestep.config.config import Config
from surestep.mirror.owner import FILE
from surestep.mirror.store import Store
from surestep.record.io import dumps
from surestep.record.safetensors_writer import write_tensors
from tests.record.checkpoint.forge import manifest_of, seal


@pytest.fixture
def address(surestep, recipe, folder):
    """The address of the mirror of a run that is no longer here."""
    address = f"file://{folder}/mirror"
    answer = surestep("train", recipe(), "--run", address)
    assert answer.code == 0, answer.err
    shutil.rmtree("runs")
    return address


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_train_prints_the_local_folder_and_resumes_by_the_same_command(surestep, recipe, address):
    answer = surestep("train", recipe(), "--run", address, "--json")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert (found["status"]["status"], found["status"]["step"]) == ("finished", 6)
    assert Path(found["run"]).parent == Path("runs")


def test_resume_finds_the_recipe_in_the_mirror(surestep, address):
    answer = surestep("resume", address)
    assert answer.code == 0
    assert "is finished: 6 steps are done" in answer.err


def test_recipe_that_was_fetched_from_the_mirror_is_not_run(surestep, address, folder):
    assert surestep("resume", address).code == 0
    path = folder / "mirror" / "config.json"
    config, here = json.loads(path.read_text()), next((folder / "runs").iterdir())
    hostile = here / "incidents" / "recipe.py"
    hostile.parent.mkdir(exist_ok=True)
    hostile.write_text(f"open({str(folder / 'ran')!r}, 'w')")
    digest = hashlib.sha256(hostile.read_bytes()).hexdigest()
    config["recipe"] |= {"path": str(hostile), "sha256": digest}
    path.write_text(json.dumps(config))
    answer = surestep("resume", address)
    assert answer.code != 0
    assert f"{hostile} is in {here}, a folder of surestep" in answer.err
    assert not (folder / "ran").exists()


def test_resume_of_a_moved_mirror_continues_there(surestep, address, folder):
    shutil.move(folder / "mirror", folder / "moved")
    moved = f"file://{folder}/moved"
    answer = surestep("resume", moved)
    assert answer.code == 0, answer.err
    assert not (folder / "mirror").exists()


def test_resume_with_options_names_the_command_with_the_address(surestep, address):
    answer = surestep("resume", address, "--epochs", "9")
    assert answer.code == 2
    assert f"--run {address} --epochs 9" in answer.err


def test_list_reads_manifests_and_no_tensors(surestep, address, folder):
    for path in (folder / "mirror" / "checkpoints").glob("*/*.safetensors"):
        flip(path)
    answer = surestep("ckpt", "list", address, "--json")
    rows = json.loads(answer.out)
    assert [row["step"] for row in rows] == [3, 6]
    assert [row["verified"] for row in rows] == [None, None]
    assert rows[1]["path"] == f"{address}/checkpoints/step-00000006"
    assert rows[1]["kept"]
    assert "val/loss" in rows[1]["metrics"]
    answer = surestep("ckpt", "list", address, "--verify")
    assert answer.out.count("damaged: model.safetensors") == 2


def test_list_names_a_file_that_lost_its_end(surestep, address, folder):
    path = folder / "mirror" / "checkpoints" / "step-00000006" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    answer = surestep("ckpt", "list", address)
    assert f"{address}/checkpoints/step-00000006: model.safetensors: it has" in answer.err


def test_verify_reads_every_byte(surestep, address, folder):
    answer = surestep("ckpt", "verify", address)
    assert (answer.code, answer.out.count("good, ")) == (0, 2)
    flip(folder / "mirror" / "checkpoints" / "step-00000006" / "optimizer.safetensors")
    answer = surestep("ckpt", "verify", address)
    assert answer.code == 1
    at = f"{address}/checkpoints/step-00000006"
    assert f"{at}: optimizer.safetensors: it has other bytes than were written" in answer.out
    assert answer.out.count("good, ") == 1
    assert surestep("ckpt", "verify", f"{address}@3").code == 0
    assert surestep("ckpt", "verify", f"{address}@last").code == 1
    answer = surestep("ckpt", "verify", f"{address}@5")
    assert (answer.code, "It has: 3, 6." in answer.err) == (1, True)


def test_verify_compares_the_headers_with_the_manifest(surestep, address, folder):
    path = folder / "mirror" / "checkpoints" / "step-00000006"
    (path / "model.safetensors").unlink()
    write_tensors(path / "model.safetensors", {"other": torch.zeros(3)})
    seal(path, manifest_of(path))
    answer = surestep("ckpt", "verify", address)
    assert answer.code == 1
    assert f"{address}/checkpoints/step-00000006: model.safetensors: " in answer.out
    assert " is not there in it instead of (" in answer.out or "instead of not there" in answer.out
    assert answer.out.count("good, ") == 1


def test_damaged_checkpoint_is_not_resumed_from(surestep, recipe, address, folder):
    flip(folder / "mirror" / "checkpoints" / "step-00000006" / "model.safetensors")
    answer = surestep("train", recipe(), "--run", address)
    assert answer.code == 0
    assert "step-00000006 is damaged: model.safetensors" in answer.err
    assert "from step 3" in answer.err
    assert surestep("ckpt", "verify", address).code == 0


def test_fetched_run_can_be_evaluated_and_pushed(surestep, address, folder):
    answer = surestep("mirror", "fetch", address, "here")
    assert (answer.code, answer.out.strip()) == (0, "here")
    assert surestep("evaluate", "here").code == 0
    assert surestep("ckpt", "verify", "here").code == 0
    shutil.rmtree(folder / "mirror" / "checkpoints" / "step-00000006")
    answer = surestep("mirror", "push", "here")
    assert answer.out == f"{address} has everything; 4 files copied.\n"
    path = folder / "mirror" / "checkpoints" / "step-00000006" / "model.safetensors"
    good = path.read_bytes()
    path.write_bytes(bytes(len(good)))
    assert surestep("mirror", "push", "here").out == f"{address} has everything; 2 files copied.\n"
    assert path.read_bytes() == good
    answer = surestep("mirror", "push", "here", "--to", f"file://{folder}/second")
    assert answer.code == 0
    assert surestep("ckpt", "verify", f"file://{folder}/second").code == 0


def test_push_without_a_mirror_asks_for_its_address(surestep, recipe):
    surestep("train", recipe(), "--run", "r")
    answer = surestep("mirror", "push", "r")
    assert answer.code == 2
    assert "r has no mirror. Pass its address: --to s3://bucket/run" in answer.err


def test_released_mirror_has_no_writer(surestep, address, folder):
    writer = {"host": "other", "pid": 7, "token": "t", "time": 0.0}
    text = dumps({"format": 1, "id": "a", "writer": writer})
    Store(str(folder / "mirror")).write(FILE, text.encode())
    assert surestep("mirror", "release", address).out == f"{address} is released.\n"
    assert surestep("mirror", "release", address).out == f"No process writes {address}.\n"


def test_path_in_place_of_an_address_is_named(surestep, folder):
    answer = surestep("mirror", "fetch", "mir")
    text = f"The mirror must be an address such as s3://bucket/run, or a full path such as {folder}"
    assert f"{text}/mir, not 'mir'." in answer.err


@pytest.mark.parametrize("word", ["none", "None", "off"])
def test_mirror_of_a_recipe_can_be_switched_off(word):
    assert Config(checkpoint={"mirror": word}).checkpoint.mirror is None


@pytest.mark.parametrize(
    "words", [["ckpt", "list"], ["ckpt", "verify"], ["resume"], ["mirror", "fetch"]], ids=" ".join
)
def test_address_without_a_run_is_an_error(surestep, folder, words):
    answer = surestep(*words, f"file://{folder}/none")
    assert answer.code == 1
    assert f"There is no run at file://{folder}/none. Check the address." in answer.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("words", [["ckpt", "list"], ["ckpt", "verify"], ["resume"]], ids=" ".join)
def test_unknown_driver_is_an_error(surestep, words):
    answer = surestep(*words, "xx://bucket/run")
    assert answer.code == 2 or words[0] == "ckpt"
    assert "There is no driver for xx://bucket/run" in answer.err


def test_dry_run_writes_no_mirror(surestep, recipe, folder):
    answer = surestep("train", recipe(), "--dry-run", "--checkpoint.mirror", f"{folder}/mirror")
    assert answer.code == 0
    assert not (folder / "mirror").exists()


def test_overfitting_writes_no_mirror(surestep, recipe, folder):
    words = ["--overfit", "4", "--checkpoint.mirror", f"{folder}/mirror"]
    surestep("train", recipe(), *words)
    assert not (folder / "mirror").exists()


def test_help_lists_the_commands(surestep):
    answer = surestep("mirror", "--help")
    assert answer.code == 0
    assert all(name in answer.out for name in ("push RUN", "fetch ADDRESS", "release ADDRESS"))
    assert surestep("mirror", "pull").code == 2


def test_error_of_a_driver_is_shown_on_one_line_without_secrets(surestep, folder, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "token-of-the-test")

    def fail(*_):
        raise RuntimeError("token-of-the-test is unknown.\nhint")

    monkeypatch.setattr(Store, "list", fail)
    for words in (["ckpt", "list"], ["mirror", "fetch"], ["resume"]):
        answer = surestep(*words, f"file://{folder}/mirror")
        assert answer.code == 1
        text = f"file://{folder}/mirror cannot be read: RuntimeError: *** is unknown.\n"
        assert answer.err.endswith(text)


@pytest.mark.parametrize("words", [["mirror", "fetch"], ["mirror", "release"], ["resume"]])
def test_credentials_in_an_address_are_rejected_and_not_printed(surestep, words):
    answer = surestep(*words, "s3://name:password@bucket/run")
    assert answer.code == 2
    assert "must not have a password" in answer.err
    assert "name" not in answer.err.replace("~/.aws", "")


@pytest.mark.parametrize("words", [["mirror", "fetch"], ["resume"]], ids=" ".join)
def test_address_with_a_checkpoint_is_rejected_where_a_full_run_is_needed(surestep, address, words):
    answer = surestep(*words, f"{address}@best")
    assert answer.code == 1
    assert f"There is no run at {address}@best. This command takes a full run" in answer.err
    assert answer.err.endswith(f"without @best: {address}\n")


@pytest.mark.parametrize("words", [["fetch"], ["release"]], ids=" ".join)
def test_run_folder_in_place_of_its_mirror_is_rejected(surestep, address, folder, words):
    surestep("mirror", "fetch", address, "here")
    answer = surestep("mirror", *words, f"{folder}/here")
    assert answer.code == 1
    text = f"{folder}/here is a run folder, not a mirror. Its mirror is {address}\n"
    assert answer.err.endswith(text)


def test_run_starts_from_a_checkpoint_of_a_mirror_by_the_printed_commands(
    surestep, recipe, address
):
    words = ("train", recipe(), "--run", "branch", "--max-steps", "9", "--from")
    answer = surestep(*words, f"{address}@best")
    assert answer.code == 1
    commands = f"surestep mirror fetch {address} runs/mine, and then pass runs/mine@best"
    assert answer.err.endswith(f"{commands}\n")
    assert surestep("mirror", "fetch", address, "runs/mine").code == 0
    answer = surestep(*words, "runs/mine@best")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "ADDRESS"],
        ["diagnose", "ADDRESS"],
        ["ckpt", "list", "ADDRESS"],
        ["mirror", "fetch", "ADDRESS", "here"],
        ["train", "RECIPE", "--run", "ADDRESS"],
    ],
)
def test_damaged_config_of_a_mirror_is_named_with_what_to_type(
    surestep, recipe, address, folder, words
):
    (folder / "mirror" / "config.json").write_text('{"config": {')
    values = {"ADDRESS": address, "RECIPE": recipe()}
    answer = surestep(*(values.get(word, word) for word in words))
    assert answer.code == 1
    assert f"{address}/config.json is damaged: Expecting property name" in answer.err
    assert f"surestep mirror push RUN --to {address}" in answer.err
    assert not (folder / "here").exists()
    assert not (folder / "runs").exists()


def test_damaged_file_of_a_mirror_is_named_by_its_address(surestep, address, folder):
    (folder / "mirror" / "status.json").write_text('{"config": {')
    answer = surestep("diagnose", address)
    assert answer.code == 1
    assert f"{address}/status.json cannot be read: Expecting property name" in answer.err


@pytest.fixture
def model_file(surestep, recipe, folder):
    """The last weights of a run of 6 steps; its folder is lost, and its mirror has step 3."""
    answer = surestep("train", recipe(), "--run", "r", "--checkpoint.mirror", f"{folder}/mirror")
    assert answer.code == 0, answer.err
    last = Path("checkpoints", "step-00000006", "model.safetensors")
    weights = (folder / "r" / last).read_bytes()
    shutil.rmtree("r")
    shutil.rmtree((folder / "mirror" / last).parent)

    def check(run):
        assert (run / last).read_bytes() == weights

    return check


@pytest.mark.parametrize("mirror", ["typed", "recorded", "none"])
def test_copy_of_a_mirror_is_resumed_as_a_run_folder(surestep, model_file, folder, mirror):
    shutil.copytree("mirror", "back")
    given = {"typed": f"{folder}/mirror", "recorded": None, "none": "none"}[mirror]
    answer = surestep("resume", "back", *(() if given is None else ("--checkpoint.mirror", given)))
    assert answer.code == 0, answer.err
    assert "Resuming back from step 3" in answer.err
    model_file(folder / "back")
    assert surestep("mirror", "push", "back").code == 0
    model_file(folder / "mirror")


def test_copy_of_a_mirror_on_another_machine_names_the_option_to_add(
    surestep, model_file, folder, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state of another machine"))
    shutil.copytree("mirror", "back")
    shutil.rmtree("mirror")
    answer = surestep("resume", "back")
    assert answer.code == 2
    assert f"surestep resume back --checkpoint.mirror {folder}/mirror" in answer.err
    assert surestep("resume", "back", "--checkpoint.mirror", "none").code == 0
    model_file(folder / "back")


@pytest.mark.parametrize("is_train", [False, True], ids=["resume", "train"])
@pytest.mark.parametrize("path", ["mirror", "{folder}/mirror", "link"])
def test_path_of_a_mirror_is_used_as_its_address(
    surestep, recipe, model_file, folder, path, is_train
):
    Path("link").symlink_to("mirror")
    words = ("train", recipe(), "--run") if is_train else ("resume",)
    answer = surestep(*words, path.format(folder=folder))
    assert answer.code == 0, answer.err
    assert f"Fetching the run and 1 checkpoint from file://{folder}/mirror into runs/" in answer.err
    (run,) = Path("runs").iterdir()
    model_file(run)
    model_file(folder / "mirror")
    assert not (folder / "mirror" / "lock").exists()
