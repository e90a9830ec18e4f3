from pathlib import Path

import pytest

from surestep.base.errors import RunError
from surestep.base.paths import (
    cache_folder,
    check_mirror_address,
    is_address,
    require_local_path,
    restore_address,
)


@pytest.mark.parametrize(
    "path",
    [
        *("s3://bucket/run", "S3://bucket/run", Path("s3://bucket/run"), "gs://bucket/run"),
        *("gcs://bucket/run", "az://box/run", "abfs://box@account/run", "hf://me/model"),
        *("https://here.org/run", "dbfs:/runs/a", "file:///tmp/run", "memory://run"),
    ],
)
def test_address_is_rejected_with_what_to_pass(path):
    with pytest.raises(RunError, match=r"is an address.*Pass a local folder, such as runs/mine"):
        require_local_path(path)


@pytest.mark.parametrize(
    "path", ["runs/a", "/tmp/run", "12:30/a", "s3/run", "lr:/x", "a@b", ".", "my s3://x", "C:/run"]
)
def test_local_paths_are_accepted(path):
    assert require_local_path(path) == Path(path)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("s3://bucket/run/", "s3://bucket/run"),
        ("S3://Bucket/run", "s3://Bucket/run"),
        ("sftp://me@host/run", "sftp://me@host/run"),
        ("az://box@account/run", "az://box@account/run"),
        ("/backup//run/", "/backup/run"),
    ],
)
def test_address_of_a_mirror_is_written_in_one_way(text, address):
    assert check_mirror_address(text) == address


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("s3:/key:secret@bucket/run", "AWS_ACCESS_KEY_ID"),
        ("s3://key:secret@bucket/run", "AWS_ACCESS_KEY_ID.*~/.aws/credentials"),
        ("s3://secret@bucket/run", "AWS_ACCESS_KEY_ID"),
        ("https://secret@host/run", "~/.config/fsspec/conf.json"),
        ("sftp://me:secret@host/run", "SSH agent or a key in ~/.ssh"),
        ("gs://secret@bucket/run", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("abfs://box:secret@account/run", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("memory://me:secret@host/run", "conf.json"),
        ("https://host/run?token=secret", r"Remove what is after the \?"),
    ],
)
def test_address_with_credentials_is_rejected_without_printing_them(text, problem):
    with pytest.raises(ValueError, match=f"must not have a password.*{problem}") as error:
        check_mirror_address(text)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("runs/mirror", "a full path such as /here/runs/mirror, not 'runs/mirror'$"),
        ("simplecache::s3://bucket/run", "not a chain"),
        ("s3:///", "name a folder"),
        ("memory://run", "lost with the process.*such as /backup/run"),
        ("file://backup/run", "three slashes after the colon: file:///here/backup/run$"),
        ("local://../run", "three slashes after the colon: local:///run$"),
        ("file://~/run", "three slashes after the colon: file:///home/me/run$"),
        ("file:///", "name a folder"),
        ("s3:/bucket/run", r"two slashes after the colon, and has only one \(.*: s3://bucket/run$"),
        ("S3:bucket/run", r"two slashes after the colon, and has none \(.*: s3://bucket/run$"),
        ("file:/backup/run", r"and has only one \(.*: file:///backup/run$"),
        ("file:run", r"and has none \(.*: file:///here/run$"),
    ],
)
def test_address_that_is_not_that_of_a_mirror_is_rejected(text, problem, monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    monkeypatch.setenv("HOME", "/home/me")
    with pytest.raises(ValueError, match=problem):
        check_mirror_address(text)


@pytest.mark.parametrize("which", ["@best", "@last", "@200"])
def test_checkpoint_of_a_mirror_is_rejected_with_the_commands_to_use_it(which):
    commands = f"surestep mirror fetch s3://bucket/run runs/mine, and then pass runs/mine{which}$"
    with pytest.raises(RunError, match=commands):
        require_local_path(Path(f"s3://bucket/run{which}"))


def test_local_folder_of_an_address_is_named_after_all_of_it():
    assert cache_folder("s3://team/lm/seed 1") == Path("runs/s3-team-lm-seed-1-bbdb5e13")
    assert restore_address(Path("s3://team/lm")) == "s3://team/lm"
    assert restore_address(Path("file:///backup/lm")) == "file:///backup/lm"
    assert is_address(Path("s3://team/lm"))
