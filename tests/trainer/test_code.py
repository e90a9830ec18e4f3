"""A process is known by its user's own modules, wherever they lie."""

import importlib
import sys

import pytest

from surestep.trainer.code import own_code


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import a module from a folder; return what is known of all."""

    def imported(folder, text, name="mymodel"):
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        importlib.import_module(name)
        return own_code()

    yield imported
    sys.modules.pop("mymodel", None)


def test_a_module_is_known_by_what_it_holds_and_not_by_where_it_lies(module):
    first, moved, other = module("a", "x = 1\n"), module("b", "x = 1\n"), module("c", "x = 2\n")
    assert first["mymodel"] == moved["mymodel"] != other["mymodel"]


def test_what_is_installed_or_shipped_is_not_of_the_user(module):
    found = module("site-packages", "x = 1\n")
    assert __name__ in found
    assert not {"mymodel", "json", "torch", "surestep", "surestep.trainer.code"} & found.keys()


def test_a_recipe_is_known_by_itself():
    assert __name__ not in own_code(__file__)


def test_the_script_is_known(tmp_path, monkeypatch):
    script = tmp_path / "own.py"
    script.write_text("x = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert "__main__" in own_code()


def test_a_file_that_is_gone_is_left_out(module, tmp_path):
    module("a", "x = 1\n")
    (tmp_path / "a" / "mymodel.py").unlink()
    assert "mymodel" not in own_code()
