"""A recipe in a folder that was received is run only if the user allows it."""

import json
import shutil
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from surestep.base.errors import RecipeError
from surestep.cli.load_run import check_recipe, load_run_recipe
from surestep.cli.track import _load_model
from surestep.recipes.find import SHIPPED
from surestep.record.run import Run
from tests.cli.conftest import BAD

COMMANDS = {
    "resume": ("resume", "r"),
    "resume of a mirror": ("resume", "file://{here}/r"),
    "evaluate": ("evaluate", "r"),
    "predict": ("predict", "r", "--out", "p.npz"),
    "replay": ("replay", "r/incidents/step-00000003"),
}
WITH_HELP = ("resume", "evaluate", "predict", "replay", "track replay")
EVIL = "open({ran!r}, 'w').close()\n"


@pytest.fixture
def received(made, folder):
    """Copy the run, whose recipe is a file in it that leaves a mark when it is run."""
    shutil.copytree(made / "r", "r")
    evil = folder / "r" / "incidents" / "evil_recipe.py"
    evil.write_text(EVIL.format(ran=str(folder / "ran")) + BAD)
    name_recipe(folder / "r", evil)
    return evil


def name_recipe(run, path, name="evil_recipe", content=None):
    """Write to config.json that a run has a recipe, with its hash."""
    file = run / "config.json"
    config = json.loads(file.read_text()) if file.exists() else {"task": {}, "config": {}}
    digest = sha256((content or Path(path)).read_bytes()).hexdigest()
    config["recipe"] = {"name": name, "path": str(path), "sha256": digest}
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("name", COMMANDS)
def test_recipe_in_a_run_or_mirror_is_run_only_if_it_is_allowed(surestep, received, folder, name):
    words = [word.format(here=folder) for word in COMMANDS[name]]
    for allow in ((), ("--allow", "recipe")):
        rejected = surestep(*words, *allow)
        assert rejected.code == 2
        assert f"{received} is in {folder / 'r'}, a folder of surestep" in rejected.err
        assert "--allow recipe-inside" in rejected.err
        assert not (folder / "ran").exists()
    allowed = surestep(*words, "--allow", "recipe-inside")
    assert (folder / "ran").exists(), allowed.err


def test_tracker_gets_no_model_of_a_recipe_in_the_run(received, folder):
    with pytest.raises(RecipeError, match="--allow recipe-inside"):
        _load_model(run := Run(Path("r")), partial(load_run_recipe, run, ()))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("command", WITH_HELP)
def test_help_shows_what_can_be_allowed(surestep, command):
    assert "recipe-inside" in surestep(*command.split(), "--help").out


def test_changed_recipe_inside_needs_both_names(surestep, received, folder):
    received.write_text(received.read_text() + "\n")
    assert surestep("evaluate", "r", "--allow", "recipe-inside").code == 2
    assert not (folder / "ran").exists()
    surestep("evaluate", "r", "--allow", "recipe,recipe-inside")
    assert (folder / "ran").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_name_to_allow_is_rejected(surestep, received, folder, name):
    words = [word.format(here=folder) for word in COMMANDS[name]]
    answer = surestep(*words, "--allow", "recipe-insid")
    assert answer.code != 0
    assert "recipe-insid" in answer.err
    assert "recipe-inside" in answer.err.replace("'recipe-insid'", "")


def test_name_of_a_recipe_that_ships_is_not_a_path(surestep, received, folder):
    shipped = SHIPPED / "digits.py"
    name_recipe(folder / "r", shipped, name=str(received), content=shipped)
    surestep("evaluate", "r")
    assert not (folder / "ran").exists()


def _mark(folder, name, found):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(found))


CONFIG = {"recipe": {}, "task": {}, "config": {}}
MIRRORED = {"id": "a", "address": "/m", "fetching": True, "elsewhere": [], "damaged": []}
STUDY = {
    **{"format": 2, "recipe": {}, "fixed": {}, "space": {}, "objectives": [], "sampler": "tpe"},
    **{"pruner": "none", "name": "a", "storage": None, "seed": 0, "trials": 1, "threads": 1},
    "nproc": 1,
}
FOLDERS = {
    "run": ("config.json", CONFIG),
    "mirror": ("mirror.json", {"format": 1, "id": "a", "writer": None}),
    "run that is being fetched": ("mirror.json", MIRRORED),
    "study": ("study.json", STUDY),
}


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("link", ["none", "file", "folder", "run"])
def test_recipe_in_any_received_folder_is_found_through_links(folder, kind, link):
    _mark(folder / "r", "config.json", CONFIG)
    other = folder / "other"
    _mark(other, *FOLDERS[kind])
    path = other / "deep" / "evil.py"
    path.parent.mkdir()
    path.write_text("")
    shown = path
    if link == "file":
        shown = folder / "evil.py"
        shown.symlink_to(path)
    elif link == "folder":
        (folder / "elsewhere").symlink_to(other / "deep")
        shown = folder / "elsewhere" / "evil.py"
    elif link == "run":  # the folder of the run itself
        shutil.move(folder / "r", folder / "moved")
        (folder / "r").symlink_to(folder / "moved")
        shown = folder / "r" / "evil.py"
        shown.write_text("")
    name_recipe(folder / "r", shown)
    run = Run(folder / "r")
    with pytest.raises(RecipeError, match="a folder of surestep"):
        check_recipe(run, (), "r")
    assert check_recipe(run, ("recipe-inside",), "r") == shown


def test_recipe_beside_a_run_needs_no_permission(folder):
    _mark(folder, "config.json", {"model_type": "bert"})  # of another library
    _mark(folder, "mirror.json", {})
    path = folder / "mine.py"
    path.write_text("")
    (folder / "r").mkdir()
    name_recipe(folder / "r", path)
    assert check_recipe(Run(folder / "r"), (), "r") == path


@pytest.mark.parametrize("damage", ["missing", "changed", "none"])
def test_mirror_is_named_by_its_address_not_by_a_temporary_folder(
    surestep, received, folder, damage
):
    address = f"file://{folder}/r"
    if damage == "missing":
        received.unlink()
    elif damage == "changed":
        received.write_text("")
    else:
        config = json.loads((folder / "r" / "config.json").read_text())
        (folder / "r" / "config.json").write_text(json.dumps({**config, "recipe": {}}))
    answer = surestep("resume", address, "--allow", "recipe-inside")
    assert answer.code != 0
    assert address in answer.err
    assert "/surestep-" not in answer.err
