import os

import pytest

from surestep.base.errors import ConfigError
from surestep.doctor.find_files import find_files
from surestep.doctor.settings import find_configuration


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def names_in(*paths):
    return [path.as_posix() for path, _ in find_files(paths).files]


def test_folder_is_searched_for_scripts_and_notebooks_in_order(folder):
    write(folder, "b.py", "a/c.ipynb", "a/b/d.py", "a/notes.txt", "a/stub.pyi")
    assert names_in(".") == ["b.py", "a/c.ipynb", "a/b/d.py"]


@pytest.mark.parametrize(
    "name", [".venv", ".git", "site-packages", "build", "node_modules", "__pycache__"]
)
def test_folder_that_is_not_of_the_project_is_skipped(folder, name):
    write(folder, "a.py", f"{name}/b.py", f"sub/{name}/c.py")
    assert names_in(".") == ["a.py"]


def test_virtual_environment_is_skipped_whatever_its_name(folder):
    write(folder, "a.py", "env/pyvenv.cfg", "env/lib/b.py")
    assert names_in(".") == ["a.py"]


def test_folder_that_is_named_is_searched(folder):
    write(folder, "build/a.py", "build/build/b.py")
    assert names_in("build") == ["build/a.py"]


def test_file_that_several_paths_name_is_found_once(folder):
    write(folder, "a.py", "b.py")
    assert names_in("b.py", ".", str(folder / "a.py")) == ["b.py", "a.py"]


def test_link_to_a_folder_above_is_not_followed(folder):
    write(folder, "a/b.py")
    (folder / "a/loop").symlink_to(folder)
    assert names_in(".") == ["a/b.py"]


def test_pipe_is_not_opened(folder):
    write(folder, "a.py")
    os.mkfifo(folder / "pipe.py")
    assert names_in(".") == ["a.py"]
    with pytest.raises(ConfigError, match=r"pipe\.py is neither a file nor a folder"):
        find_files(["pipe.py"])


def test_missing_path_is_an_error():
    with pytest.raises(ConfigError, match=r"gone\.py does not exist"):
        find_files(["gone.py"])


@pytest.mark.parametrize("name", ["a" * 5000, "a\0.py"])
def test_path_that_the_system_rejects_is_an_error(name):
    with pytest.raises(ConfigError, match="cannot be read"):
        find_files([name])


def test_file_of_another_type_is_an_error(folder):
    write(folder, "a.txt")
    with pytest.raises(ConfigError, match=r"a\.txt is neither a script"):
        find_files(["a.txt"])


@pytest.mark.parametrize(
    ("pattern", "excluded"),
    [
        ("old", ["old/a.py", "sub/old/b.py"]),
        ("old/", ["old/a.py", "sub/old/b.py"]),
        ("/old", ["old/a.py"]),
        ("sub/old", ["sub/old/b.py"]),
        ("test_*.py", ["sub/test_c.py", "test_d.py"]),
        ("sub/*", ["sub/old/b.py", "sub/test_c.py"]),
        ("**/old", ["old/a.py", "sub/old/b.py"]),
        ("**/old/*.py", ["old/a.py", "sub/old/b.py"]),
        ("./old", ["old/a.py", "sub/old/b.py"]),
        ("OLD", []),
    ],
)
def test_pattern_excludes_what_it_would_in_gitignore(folder, pattern, excluded):
    files = ["old/a.py", "sub/old/b.py", "sub/test_c.py", "test_d.py"]
    write(folder, *files)
    (folder / "pyproject.toml").write_text(f'[tool.surestep.check]\nexclude = ["{pattern}"]\n')
    assert sorted(names_in(".")) == sorted(set(files) - set(excluded))


def test_patterns_of_the_command_count_from_the_current_folder_too(folder):
    write(folder, "old/a.py", "sub/old/b.py", "sub/c.py", "d.py")
    (folder / "sub/pyproject.toml").write_text('[tool.surestep.check]\nexclude = ["c.py"]\n')
    found = find_files([".", "sub"], ["/old", "d.*"])
    assert [path.as_posix() for path, _ in found.files] == ["sub/c.py", "sub/old/b.py"]
    found = find_files(["sub"], ["sub/old"])
    assert ([*found.files], found.excluded) == ([], 1)


def test_excluded_file_is_counted_if_it_is_named(folder):
    write(folder, "old/a.py", "b.py")
    (folder / "pyproject.toml").write_text('[tool.surestep.check]\nexclude = ["old"]\n')
    found = find_files(["old/a.py", "b.py"])
    assert ([path.name for path, _ in found.files], found.excluded) == (["b.py"], 1)


def test_settings_are_those_of_the_nearest_pyproject_that_has_some(folder):
    write(folder, "a/b/c.py", "d.py")
    (folder / "pyproject.toml").write_text('[tool.surestep.check]\nselect = ["SS1"]\n')
    (folder / "a/pyproject.toml").write_text('[tool.surestep.check]\nselect = ["SS101"]\n')
    (folder / "a/b/pyproject.toml").write_text("[tool.ruff]\n")
    settings = {path.name: each.settings.select for path, each in find_files(["a", "d.py"]).files}
    assert settings == {"c.py": ("SS101",), "d.py": ("SS1",)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selected = ['SS1']", "has no setting 'selected'. Did you mean 'select'?"),
        ("select = 'SS1'", "select is a list of text"),
        ("ignore = [101]", "ignore is a list of text"),
        ("select = [", "cannot be read"),
    ],
)
def test_wrong_setting_is_an_error_that_names_the_file(folder, text, message):
    write(folder, "a.py")
    (folder / "pyproject.toml").write_text(f"[tool.surestep.check]\n{text}\n")
    with pytest.raises(ConfigError) as error:
        find_files(["a.py"])
    assert message in str(error.value)
    assert str(folder / "pyproject.toml") in str(error.value)


@pytest.mark.parametrize("text", ["", "tool = 3", "[tool.surestep]\nother = 3"])
def test_file_without_the_table_has_no_settings(folder, text):
    write(folder, "a.py")
    (folder / "pyproject.toml").write_text(text)
    assert find_configuration(folder / "a.py", {}).file is None


@pytest.mark.parametrize("pattern", ["sub", "sub/*.py", "{folder}/sub", "{folder}/sub/c.py"])
@pytest.mark.parametrize("is_outside", [False, True])
def test_patterns_of_the_command_line_are_for_any_folder(
    folder, monkeypatch, tmp_path_factory, pattern, is_outside
):
    if is_outside:
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    write(folder, "b.py", "sub/c.py")
    found = find_files([str(folder)], [pattern.format(folder=folder)])
    assert [path.name for path, _ in found.files] == ["b.py"]


def test_patterns_count_from_the_current_folder_if_a_folder_above_is_searched(folder, monkeypatch):
    write(folder, "a.py", "scripts/old/x.py", "scripts/y.py")
    monkeypatch.chdir(folder / "scripts")
    found = find_files([".."], ["old/x.py"])
    assert [path.name for path, _ in found.files] == ["a.py", "y.py"]


@pytest.mark.parametrize("pattern", ["link/sub", "real/x/../sub", "real/sub"])
@pytest.mark.parametrize("searched", ["link", "real"])
def test_absolute_pattern_is_followed_through_links(folder, pattern, searched):
    write(folder, "real/a.py", "real/sub/b.py")
    (folder / "link").symlink_to(folder / "real")
    found = find_files([str(folder / searched)], [str(folder / pattern)])
    assert [path.name for path, _ in found.files] == ["a.py"]
