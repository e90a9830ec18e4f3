import pytest
import torch

from surestep.base import torch_release
from surestep.base.errors import ConfigError
from surestep.base.torch_release import check_oldest, describe_newer, is_older, read_version
from tests import tiny


@pytest.mark.parametrize(
    ("version", "release", "older"),
    [
        *(("2.6.0", "2.6", False), ("2.13.0+cpu", "2.9", False), ("2.8.1+cu126", "2.9", True)),
        *(("2.9.0a0+git1f", "2.9", False), ("3.0.0", "2.9", False), ("2.6.0", "", False)),
    ],
)
def test_releases_are_compared_as_numbers(version, release, older):
    assert is_older(version, release) is older


def test_version_is_read_without_importing_torch(tmp_path):
    assert torch.__version__ == torch_release.VERSION
    assert read_version(tmp_path) == ""
    (tmp_path / "version.py").write_text("from . import x\n")
    assert read_version(tmp_path) == ""


def test_too_old_torch_is_rejected_in_one_line():
    with pytest.raises(ConfigError, match=r"needs torch 2\.6, and this is torch 2\.5\.1\+cu124\."):
        check_oldest("2.5.1+cu124")
    assert [check_oldest(version) for version in ("", "2.6.0", "3.0")] == ["", "2.6.0", "3.0"]


def test_newer_torch_gets_one_notice():
    assert "torch 2.16.0 is newer than 2.15" in describe_newer("2.16.0")
    assert [describe_newer(version) for version in ("", "2.6.0", "2.15.1+cu132")] == [None] * 3


def test_run_with_a_newer_torch_says_so_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch_release, "VERSION", "2.16.0")
    tiny.fit(tmp_path / "run", max_steps=2, logging={"progress": "plain"})
    assert capsys.readouterr().err.count("torch 2.16.0 is newer than 2.15") == 1
