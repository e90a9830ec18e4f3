"""Local paths and addresses of stores: which of them a text is, and whether a mirror can use it."""

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

from surestep.base.errors import ConfigError, RunError

# `Path` turns the // of an address into /, so these are known without it too.
_STORES = "s3|s3a|s3n|gs|gcs|az|abfs|abfss|wasb|wasbs|hf|adl|dbfs|file|ftp|hdfs|https?|oss|sftp|ssh"
# What is before the @ in these is the name of a user or of a container; elsewhere it is a token.
_WITH_USER = frozenset(
    {"sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "az", "abfs", "abfss", "wasb", "wasbs"}
)
_AWS = (
    "the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or the file ~/.aws/credentials"
)
_SSH = "an SSH agent or a key in ~/.ssh"
_AZURE = "the environment (AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY)"
_OTHER_CREDENTIALS = "the configuration file of fsspec, ~/.config/fsspec/conf.json"
_CREDENTIALS = {
    **dict.fromkeys(("s3", "s3a"), _AWS),
    **dict.fromkeys(("sftp", "ssh"), _SSH),
    **dict.fromkeys(("gs", "gcs"), "the environment (GOOGLE_APPLICATION_CREDENTIALS)"),
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
}
_TOO_FEW_SLASHES = re.compile(rf"({_STORES}|local):(/?)(?!/)", re.IGNORECASE)
_ADDRESS = re.compile(rf"[a-z][a-z0-9+.-]+://|({_STORES}):/", re.IGNORECASE)

PLACEHOLDER = re.compile(r"\{([^{}/]*)\}")


def split_existing(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Split a path into the part that exists and the rest; no part of an address exists."""
    text = os.fspath(path)
    folders = () if is_address(text) else (Path(text), *Path(text).parents)
    existing = next((str(folder) for folder in folders if folder.exists()), "")
    return (existing, text[len(existing) :]) if text.startswith(existing) else ("", text)


def reject_pattern(run: str | os.PathLike[str]) -> None:
    """Reject a run folder with a "{name}" that was to be filled in, before it is made.

    Raises:
        ConfigError: it has one.
    """
    if found := PLACEHOLDER.search(split_existing(run)[1]):
        raise ConfigError(
            f"run={os.fspath(run)!r} has {found[0]}, which only --run fills in. Pass the name of "
            "the folder, for example by an f-string: run=f'runs/{name}'."
        )


def require_local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path.

    Raises:
        RunError: it is an address, such as s3://bucket/run.
    """
    text = os.fspath(path)
    if not is_address(text):
        return Path(text)
    address, which = split_address(restore_address(text))
    then = "" if which is None else f", and then pass runs/mine@{which}"
    raise RunError(
        f"{text!r} is an address, but surestep needs a folder of a file system, which supports "
        "renames and locks. Pass a local folder, such as runs/mine. To copy a run from its mirror "
        f"into one: surestep mirror fetch {address} runs/mine{then}"
    )


class FixedPath:
    """An attribute for a path that stays the same if the working directory is changed.

    As long as it is not, the path is as it was given, which is short; then it is a full one. A
    thread needs `.absolute()`, since another one can change the directory at any time.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, owner: object, kind: type | None = None) -> Path:
        if owner is None:  # so a dataclass takes it for a field without a default
            raise AttributeError(self._name)
        return fix_path(*vars(owner)[self._name])

    def __set__(self, owner: object, path: str | Path) -> None:
        vars(owner)[self._name] = Path(path), working_directory()


def fix_path(path: Path, start: str | None) -> Path:
    """Return a path that was given in the working directory `start`, from the current one."""
    is_same = start is None or path.is_absolute() or start == working_directory()
    return path if is_same else Path(str(start), path)


def working_directory() -> str | None:
    """Return the working directory; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address, such as s3://bucket/run."""
    return _ADDRESS.match(os.fspath(path)) is not None


def restore_address(path: str | os.PathLike[str]) -> str:
    """Return an address with the // that `Path` turns into /, or with the /// of a local file."""
    text = re.sub(r"^(file|local):/(?!/)", r"\1:///", os.fspath(path), flags=re.IGNORECASE)
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/(?!/)", r"\1://", text)


def split_address(text: str) -> tuple[str, int | Literal["best", "last"] | None]:
    """Split "s3://bucket/run@200", "...@best" or "...@last" at its last @; None if it has none."""
    match = re.fullmatch(r"(.+/[^/]+)@([0-9]+|best|last)", text)
    if match is None:
        return text, None
    which = match[2]
    return match[1], int(which) if which.isdecimal() else "best" if which == "best" else "last"


def check_mirror_address(text: str) -> str:
    """Return the address of a mirror, without a slash at its end.

    Raises:
        ValueError: it has credentials or too few slashes, is a relative path, names no folder, or
            is of a store that ends with the process. The message quotes nothing that can be a
            credential.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        check_slashes(text)
        if not text.startswith("/"):
            raise ValueError(
                "must be an address such as s3://bucket/run, or a full path such as "
                f"{os.path.abspath(os.path.expanduser(text))}, not {text!r}"
            )
        return os.path.normpath(text)
    if "::" in text:
        raise ValueError(
            "must be a single address, such as s3://bucket/run, not a chain of addresses with ::"
        )
    _check_no_credentials(scheme, rest)
    if scheme == "memory":
        raise ValueError(
            "must not be in memory, which is lost with the process. Set an address such as "
            "s3://bucket/run, or a full path such as /backup/run"
        )
    if scheme in ("file", "local") and not rest.startswith("/"):
        raise ValueError(
            f"must be a full path, with three slashes after the colon: {scheme}://"
            f"{os.path.abspath(os.path.expanduser(rest))}"
        )
    if not rest.strip("/"):
        raise ValueError(f"must name a folder, such as {scheme}://bucket/run")
    return f"{scheme}://{rest.rstrip('/')}"


def check_slashes(text: str) -> None:
    """Check that a text is not an address with less than two slashes after the colon.

    `restore_address` restores what `Path` removed.

    Raises:
        ValueError: it is; or it has credentials, which the message does not quote.
    """
    match = _TOO_FEW_SLASHES.match(text)
    if match is None:
        return
    scheme, count, rest = match[1].lower(), "only one" if match[2] else "none", text[match.end() :]
    _check_no_credentials(scheme, rest)
    if scheme in ("file", "local"):
        rest = os.path.abspath(f"{match[2]}{rest}")
    raise ValueError(
        f"must have two slashes after the colon, and has {count} (a Path of Python removes one): "
        f"{scheme}://{rest}"
    )


def _check_no_credentials(scheme: str, rest: str) -> None:
    """Raise a ValueError if an address has credentials: before an @, or in a query."""
    user, at, _ = rest.partition("/")[0].rpartition("@")
    is_plain_user = scheme in _WITH_USER and ":" not in user
    if (at and not is_plain_user) or "?" in rest:
        raise ValueError(
            "must not have a password, a key or a token, because the run folder records it. Remove "
            f"what is {'before the @' if at and not is_plain_user else 'after the ?'}, and pass it "
            f"by {_CREDENTIALS.get(scheme, _OTHER_CREDENTIALS)}"
        )


def cache_folder(address: str) -> Path:
    """Return the local folder for a run that is given by its address.

    Its name has a hash of the address, such as "runs/s3-bucket-run-1a2b3c4d", because s3://b/x-y
    and s3://b/x/y have the same letters.
    """
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9._]+", "-", address).strip("-")
    return Path("runs") / f"{name}-{digest}"
