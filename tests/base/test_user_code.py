"""Files of torch are never the user's, wherever torch is installed."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from surestep.base import user_code
from surestep.base.user_code import is_recipe_file, is_user_file, shorten_path

SURESTEP = Path(user_code.__file__).parents[1]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Prints, for files of torch, of the package beside it, of Python and of the user, whose they are.
PROGRAM = """
import runpy, sys, json, torch, torch.nn, project
answer = runpy.run_path(sys.argv[1])
files = [torch.__file__, torch.nn.__file__, json.__file__, project.__file__, __file__]
print(*map(answer["is_user_file"], files), answer["shorten_path"](torch.nn.__file__))
"""


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_torch(folder):
    """Write a package named torch, as a checkout of its source has it."""
    write(folder / "torch/__init__.py")
    write(folder / "torch/nn/__init__.py")


def install_torch(folder):
    put_torch(folder)
    record = "torch/__init__.py,sha256=x,0\n../../bin/torchrun,,\n"
    write(folder / "torch-2.9.dist-info/RECORD", record)


def make_system(folder):
    """Make a Python with its own folder for packages; return its executable."""
    python = folder / "bin" / PYTHON
    python.parent.mkdir(parents=True)
    python.symlink_to(Path(sys._base_executable).resolve())
    library = folder / "lib" / PYTHON
    library.mkdir(parents=True)
    for entry in Path(sysconfig.get_path("stdlib")).iterdir():
        if entry.name != "site-packages":
            (library / entry.name).symlink_to(entry)
    return python


def make_venv(folder, python, *, has_system_packages):
    """Make a virtual environment; return its executable."""
    has_them = str(has_system_packages).lower()
    settings = f"home = {python.parent}\ninclude-system-site-packages = {has_them}\n"
    write(folder / "pyvenv.cfg", settings)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    (folder / "lib" / PYTHON / "site-packages").mkdir(parents=True)
    return folder / "bin" / "python"


def in_venv(tmp_path):
    python = make_venv(tmp_path / "venv", make_system(tmp_path / "usr"), has_system_packages=False)
    install_torch(tmp_path / "venv/lib" / PYTHON / "site-packages")
    return python, {}


def in_system_of_venv(tmp_path):
    python = make_venv(tmp_path / "venv", make_system(tmp_path / "usr"), has_system_packages=True)
    install_torch(tmp_path / "usr/lib" / PYTHON / "site-packages")
    return python, {}


def in_home(tmp_path):
    install_torch(tmp_path / ".local/lib" / PYTHON / "site-packages")
    return make_system(tmp_path / "usr"), {"PYTHONUSERBASE": str(tmp_path / ".local")}


def in_dist_packages(tmp_path):
    folder = tmp_path / "usr/lib/python3/dist-packages"
    install_torch(folder)
    python = make_system(tmp_path / "usr")
    write(tmp_path / "usr/lib" / PYTHON / "site-packages/debian.pth", str(folder))
    return python, {}


def in_target_on_pythonpath(tmp_path):
    install_torch(tmp_path / "libraries")
    return make_system(tmp_path / "usr"), {"PYTHONPATH": str(tmp_path / "libraries")}


def in_checkout_on_pythonpath(tmp_path):
    put_torch(tmp_path / "pytorch")
    return make_system(tmp_path / "usr"), {"PYTHONPATH": str(tmp_path / "pytorch")}


def in_checkout_of_pth(tmp_path):
    python = make_venv(tmp_path / "venv", make_system(tmp_path / "usr"), has_system_packages=False)
    put_torch(tmp_path / "pytorch")
    packages = tmp_path / "venv/lib" / PYTHON / "site-packages"
    write(packages / "torch.pth", str(tmp_path / "pytorch"))
    return python, {}


def beside_the_script(tmp_path):
    install_torch(tmp_path / "project")
    return make_system(tmp_path / "usr"), {}


PLACES = [
    in_venv,
    in_system_of_venv,
    in_home,
    in_dist_packages,
    in_target_on_pythonpath,
    in_checkout_on_pythonpath,
    in_checkout_of_pth,
    beside_the_script,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_only_torch_and_python_are_installed(tmp_path, place):
    python, environ = place(tmp_path)
    write(tmp_path / "project/train.py", PROGRAM)
    write(tmp_path / "project/project.py")
    if not python.is_relative_to(tmp_path / "venv"):  # else Python follows the link
        environ["PYTHONHOME"] = str(tmp_path / "usr")
    done = subprocess.run(
        [python, "project/train.py", user_code.__file__],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False False False True True torch/nn/__init__.py\n", "")


def test_module_beside_an_installed_package_is_the_users(tmp_path, monkeypatch):
    write(tmp_path / "numpy-2.0.dist-info/RECORD", "numpy/__init__.py,,\nsix.py,,\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    files = ["numpy/core/x.py", "six.py", "train.py", "numpy_tools/x.py"]
    found = [is_user_file(str(tmp_path / file)) for file in files]
    assert found == [False, False, True, True]


def test_project_that_is_installed_as_editable_is_the_users(tmp_path, monkeypatch):
    write(tmp_path / "project.egg-info/top_level.txt", "project\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert is_user_file(str(tmp_path / "project" / "train.py"))


def test_folder_with_a_similar_name_is_the_users():
    for folder in (SURESTEP, sysconfig.get_path("stdlib")):
        assert not is_user_file(f"{folder}/x.py")
        assert is_user_file(f"{folder}-try/x.py")


def test_cell_of_a_notebook_is_the_users_and_an_executed_string_is_not():
    assert is_user_file("<ipython-input-3-0a1b2c>")
    assert not is_user_file("<string>")
    assert not is_user_file("<frozen runpy>")


def test_recipe_is_a_file_of_surestep():
    recipe = str(SURESTEP / "recipes" / "digits.py")
    assert is_recipe_file(recipe)
    assert not is_user_file(recipe)
    assert not is_recipe_file(__file__)


def test_path_is_shortened_to_where_it_is_imported_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shorten_path(str(SURESTEP / "base" / "warn.py")) == "surestep/base/warn.py"
    assert shorten_path("/x/site-packages/numpy/core.py") == "numpy/core.py"
    assert shorten_path(str(tmp_path / "train.py")) == "train.py"
    assert shorten_path("/elsewhere/train.py") == "/elsewhere/train.py"
    assert shorten_path("<string>") == "<string>"
