"""A process is identified by the modules of its user, wherever they are stored."""

import importlib
import sys
from importlib.util import LazyLoader, module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from surestep.trainer.run_identity import hash_user_modules


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import a module from a folder; return the identity of all modules."""

    def imported(folder, text, name="mymodel"):
        path = tmp_path / folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
        sys.modules.pop(name, None)  # monkeypatch would put the module of an earlier call back
        importlib.invalidate_caches()
        importlib.import_module(name)
        return hash_user_modules()

    yield imported
    sys.modules.pop("mymodel", None)


def test_module_is_identified_by_its_content_and_not_by_its_path(module):
    first, moved, other = module("a", "x = 1\n"), module("b", "x = 1\n"), module("c", "x = 2\n")
    assert first["mymodel"] == moved["mymodel"] != other["mymodel"]


def test_second_start_finds_the_same_modules_with_what_their_files_have_by_then(module, tmp_path):
    first = module("a", "x = 1\n")
    assert hash_user_modules() == first
    (tmp_path / "a" / "mymodel.py").write_text("x = 2\n")
    assert hash_user_modules()["mymodel"] != first["mymodel"]


def test_installed_and_shipped_modules_are_not_user_modules(module):
    assert "mymodel" in module("a", "x = 1\n")
    found = module("site-packages", "x = 1\n")
    assert (
        not {"mymodel", "json", "torch", "surestep", "surestep.trainer.run_identity"} & found.keys()
    )


def test_recipe_is_identified_by_its_file(module, tmp_path):
    assert "mymodel" in module("a", "x = 1\n")
    assert "mymodel" not in hash_user_modules(str(tmp_path / "a" / "mymodel.py"))


def test_script_is_part_of_the_identity(tmp_path, monkeypatch):
    script = tmp_path / "own.py"
    script.write_text("x = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert "__main__" in hash_user_modules()


def test_missing_file_is_omitted_from_the_identity(module, tmp_path):
    module("a", "x = 1\n")
    (tmp_path / "a" / "mymodel.py").unlink()
    assert "mymodel" not in hash_user_modules()


def test_file_imported_under_several_names_is_listed_once(tmp_path, monkeypatch):
    script = tmp_path / "own.py"
    script.write_text("x = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])  # multiprocessing does
    found = hash_user_modules()
    assert "__main__" in found
    assert "__mp_main__" not in found


def test_module_generated_by_an_installed_package_is_not_a_user_module(tmp_path, monkeypatch):
    made = ModuleType("torch._inductor.runtime.compile_tasks.kernel")
    made.__file__ = str(tmp_path / "kernel.py")
    (tmp_path / "kernel.py").write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert made.__name__ not in hash_user_modules()


def test_lazy_module_is_not_loaded_by_the_identity(tmp_path, monkeypatch):
    path = tmp_path / "lazy.py"
    path.write_text("raise ImportError('no such optional thing')\n")
    spec = spec_from_file_location("lazy", path)
    spec.loader = LazyLoader(spec.loader)
    lazy = module_from_spec(spec)
    spec.loader.exec_module(lazy)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    assert "lazy" in hash_user_modules()


@pytest.mark.parametrize("name", [7, "lone \ud800", "nul"])
def test_unusual_module_object_is_omitted_from_the_identity(name, tmp_path, monkeypatch):
    odd = ModuleType("odd")
    odd.__file__ = "\0.py" if name == "nul" else str(tmp_path / "odd.py")
    (tmp_path / "odd.py").write_text("x = 1\n")
    monkeypatch.setitem(sys.modules, name, odd)
    monkeypatch.setitem(sys.modules, "nothing", None)
    assert name not in hash_user_modules()


def test_module_without_attributes_is_left_out(monkeypatch):
    class Library:
        """Like the libraries of cffi, which say that they are modules."""

        __slots__ = ()
        __class__ = ModuleType

    monkeypatch.setitem(sys.modules, "library", Library())
    assert "library" not in hash_user_modules()
