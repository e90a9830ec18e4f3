"""The configuration of a repository that was received runs nothing."""

import os
import subprocess
from pathlib import Path

import pytest

import surestep
from surestep.record.git import _ask, read_commit
from surestep.record.run_writer import collect_environment
from tests import tiny

WHO = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
SOURCE = Path(surestep.__file__).parent


def git(folder, *words, **options):
    return subprocess.run(
        ["git", *WHO, *words], cwd=folder, capture_output=True, check=True, **options
    )


def make_repository(folder, name):
    """Make a repository with one file, and return it."""
    folder.mkdir()
    git(folder, "init")
    (folder / name).write_text("1")
    git(folder, "add", name)
    git(folder, "commit", "-m", name)
    return folder


@pytest.fixture
def repository(tmp_path):
    return make_repository(tmp_path / "received", "a")


def test_commit_and_whether_files_differ(repository):
    found = collect_environment(tiny.FACTS, repository)["git"]
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    (repository / "a").write_text("2")
    assert read_commit(repository)["dirty"] is True
    git(repository, "checkout", "a")
    git(repository, "mv", "a", "b")
    assert read_commit(repository)["dirty"] is True


def test_commit_is_unknown_before_the_first_one(tmp_path):
    git(tmp_path, "init")
    assert read_commit(tmp_path) is None


def test_commit_is_unknown_without_git(tmp_path, monkeypatch):
    assert read_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert read_commit(tmp_path) is None


def leave_mark(folder, name):
    """Return a program that leaves a file and fails."""
    program = folder / ".git" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\ntouch {folder.parent}/{name.replace('/', '-')}\nexit 1\n")
    program.chmod(0o755)
    return program


def set_option(folder, name, value):
    git(folder, "config", name, str(value))


def make_monitor(folder):
    set_option(folder, "core.fsmonitor", leave_mark(folder, "monitor"))


def make_hook(folder):
    leave_mark(folder, "hooks/post-index-change")
    os.utime(folder / "a", (0, 0))  # git writes the index again


def make_filter(folder, key="clean", name="evil.x"):
    set_option(folder, f"filter.{name}.{key}", leave_mark(folder, key))
    (folder / ".git" / "info" / "attributes").write_text(f"* filter={name}\n")
    (folder / "a").write_text("2")


def make_process(folder):
    make_filter(folder, "process")


def make_included_filter(folder):
    make_filter(folder)
    text = (folder / ".git" / "config").read_text()
    (folder / "more").write_text(text[text.index("[filter") :])
    git(folder, "config", "--remove-section", "filter.evil.x")
    set_option(folder, "include.path", folder / "more")


def make_strange_filter(folder):
    make_filter(folder, name="a=b")


def make_promise(folder):
    """Let the repository lack the tree of its commit, which git then fetches by a command."""
    tree = git(folder, "rev-parse", "HEAD^{tree}", text=True).stdout.strip()
    (folder / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    set_option(folder, "core.repositoryFormatVersion", 1)
    set_option(folder, "extensions.partialClone", "origin")
    set_option(folder, "remote.origin.url", f"ext::{leave_mark(folder, 'fetch')}")
    set_option(folder, "protocol.ext.allow", "always")


def make_submodule(folder):
    inner = make_repository(folder / "inner", "b")
    git(folder, "add", "inner")
    git(folder, "commit", "-m", "inner")
    (inner / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    set_option(inner, "filter.evil.clean", leave_mark(folder, "submodule"))
    (inner / "b").write_text("2")


HOSTILE = [
    *(make_monitor, make_hook, make_filter, make_process, make_included_filter),
    *(make_strange_filter, make_promise, make_submodule),
]


@pytest.mark.parametrize("make", HOSTILE)
def test_configuration_of_a_repository_runs_nothing(repository, make):
    before = set(repository.parent.iterdir())
    make(repository)
    read_commit(repository)
    assert set(repository.parent.iterdir()) == before
    words = ["git", "status", "--porcelain=v2"]
    subprocess.run(words, cwd=repository, capture_output=True, check=False, timeout=60)
    assert set(repository.parent.iterdir()) > before, "git itself does not run it"


def test_hook_does_not_run_when_git_writes(repository):
    """`git status` writes nothing here; another command may."""
    before = set(repository.parent.iterdir())
    make_hook(repository)
    _ask(repository, "update-index", "--refresh")
    assert set(repository.parent.iterdir()) == before
    os.utime(repository / "a", (1, 1))
    git(repository, "update-index", "--refresh")
    assert set(repository.parent.iterdir()) > before, "git itself does not run it"


def test_folder_that_is_a_bare_repository_is_not_one(repository):
    """It may lie among the files of any other repository, which git clones."""
    (repository / ".git").rename(folder := repository.parent / "bare")
    for name, value in (("core.bare", "false"), ("core.worktree", repository)):
        subprocess.run(["git", "config", "-f", folder / "config", name, value], check=True)
    head = ["git", "rev-parse", "HEAD"]
    assert len(subprocess.check_output(head, cwd=folder).strip()) == 40
    assert read_commit(folder) is None


def test_filtered_file_that_is_changed_is_found(repository):
    make_filter(repository)
    assert read_commit(repository)["dirty"] is True


def test_git_is_called_in_one_place():
    files = {path for path in SOURCE.rglob("*.py") if '"git"' in path.read_text(encoding="utf-8")}
    calls = {path.name for path in files if "subprocess" in path.read_text(encoding="utf-8")}
    assert calls == {"git.py"}
