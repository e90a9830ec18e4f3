"""A folder of an object store or another disk, through fsspec and its drivers.

Object stores write an object completely or not at all. Elsewhere a file is written under a hidden
name first. Nothing counts as copied before the store's own checksum, or its bytes read back, agree
with the local bytes.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from surestep.base.errors import ConfigError, RunError
from surestep.base.secrets import describe_error, first_line
from surestep.mirror.progress import Progress, TimedCalls
from surestep.mirror.ssh import SSHFileSystem
from surestep.record.checkpoint.discovery import has_checkpoint_name
from surestep.record.io import open_regular

PART = 2**24  # bytes: of a part of a multipart upload, and of what is read at once
_CHUNK = 2**20  # bytes: what is hashed at once
LARGEST = 2**28  # bytes of a file that is read into memory
HIDDEN = ".part-"  # prefix of a file that is being written
# They write an object completely or not at all; a rename would copy it.
_OBJECT_STORES = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "hf", "memory"}
)
# The first part of their addresses is a bucket, which other programs use as well.
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"})
_SSH = frozenset({"ssh", "sftp"})
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
    **dict.fromkeys(_SSH, "paramiko"),
    **{"hf": "huggingface_hub", "oss": "ossfs", "smb": "smbprotocol", "webdav": "webdav4"},
}
# A store that does not answer is noticed within a minute: botocore makes two attempts, and s3fs
# repeats them _S3_ATTEMPTS times. Their own limits add up to more.
_S3 = {"connect_timeout": 10, "read_timeout": 15, "retries": {"total_max_attempts": 2}}
_S3_ATTEMPTS = 2
SILENT_S = 5.0  # before a line says that a store is waited for
_POLL_S = 0.1


class UnreachableError(RunError):
    """A store does not answer, or cannot take what is written; it may later."""


@dataclass(frozen=True)
class FileHashes:
    """The size and hashes of a local file.

    Attributes:
        bytes: its size.
        sha256: as manifests have it.
        etags: what a store may return for these bytes, if it computes MD5.
    """

    bytes: int
    sha256: str
    etags: frozenset[str]


def hash_file(path: Path, note: Callable[[int], None] = lambda _: None) -> FileHashes:
    """Read a local file once, and return its size and hashes.

    Args:
        path: of the file.
        note: called with the bytes that were read so far.
    """
    sha256, md5, part, parts, size = hashlib.sha256(), _md5(), _md5(), list[bytes](), 0
    with open_regular(path) as file:
        while chunk := file.read(min(_CHUNK, PART - size % PART)):
            for digest in (sha256, md5, part):
                digest.update(chunk)
            size += len(chunk)
            note(size)
            if size % PART == 0:
                parts.append(part.digest())
                part = _md5()
    if size % PART:
        parts.append(part.digest())
    return FileHashes(size, sha256.hexdigest(), _etags(md5.digest(), parts))


def hash_bytes(data: bytes) -> FileHashes:
    """Return the size and hashes of bytes that are written at once."""
    return FileHashes(len(data), hashlib.sha256(data).hexdigest(), _etags(_md5(data).digest(), []))


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)


def _etags(md5: bytes, parts: list[bytes]) -> frozenset[str]:
    """Return the checksums of S3 for one part and for several, and that of Google."""
    of_parts = f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}"
    return frozenset({md5.hex(), of_parts, b64encode(md5).decode()})


def is_plain(name: str) -> bool:
    """Return whether a name stays within its folder, and is not that of a hidden file."""
    parts = name.split("/")
    visible = all(part and not part.startswith(".") for part in parts)
    return visible and "\\" not in name and name.isprintable()


def _is_of_run(name: str) -> bool:
    """Return whether a name is that of a record or of a file of a checkpoint of this very run."""
    *folders, file = name.split("/")
    return bool(file) and (
        not folders
        or (len(folders) == 2 and folders[0] == "checkpoints" and has_checkpoint_name(folders[1]))
    )


def _is_partial(name: str) -> bool:
    return name.rpartition("/")[2].startswith(HIDDEN) and _is_of_run(name)


class Store:
    """A folder at an address. Names of files are relative to it, with slashes.

    Args:
        address: such as "s3://bucket/run", or a full path.

    Attributes:
        progress: of what is uploaded and read back.

    Raises:
        ConfigError: there is no driver for it, its package is not installed, or it is a bucket.
        RunError: its driver cannot connect.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._scheme = address.partition("://")[0] if "://" in address else "file"
        fs, self._root = _connect(address, self._scheme)
        self.progress = Progress()
        self._fs = TimedCalls(fs, self.progress)

    @property
    def local_path(self) -> Path | None:
        """The folder, if it is on a disk of this machine."""
        return Path(self._root) if self._scheme in ("file", "local") else None

    def silent_s(self) -> float:
        """Return for how many seconds a call was not answered; 0 if no call waits for an answer."""
        return self._fs.silent_s()

    @contextmanager
    def announce_silence(self, print_line: Callable[[str], None]) -> Iterator[None]:
        """Print a line if the store does not answer for a while in the body."""
        ended = Event()

        def watch() -> None:
            while not ended.wait(_POLL_S):
                if self.silent_s() > SILENT_S:
                    print_line(f"{self.address} does not answer yet. Ctrl-C ends the wait for it.")
                    return

        Thread(target=watch, name="surestep-mirror-silence", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    @property
    def is_atomic(self) -> bool:
        """Whether a file is written completely or not at all."""
        return self._scheme in _OBJECT_STORES

    def list(self) -> dict[str, int]:
        """Return the size of each file, by name.

        Raises:
            Exception: a folder cannot be listed; an outage is not an empty mirror.
        """
        return {name: size for name, size in self._find().items() if is_plain(name)}

    def _find(self) -> dict[str, int]:
        """Return the size of each file, hidden ones as well."""
        if self.is_atomic:
            found = self._fs.find(self._root, detail=True)
        else:
            found = {entry["name"]: entry for entry in self._traverse(self._root)}
        start = f"{self._root.rstrip('/')}/"
        return {
            path.removeprefix(start): int(entry["size"])
            for path, entry in found.items()
            if path.startswith(start) and entry["type"] == "file"
        }

    def _traverse(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the entries below a folder; fsspec's own walk leaves out what it cannot list."""
        try:
            entries = self._fs.ls(folder, detail=True)
        except FileNotFoundError:  # nothing was written yet, or it is deleted now
            return
        for entry in entries:
            yield entry
            if entry["type"] == "directory":
                yield from self._traverse(entry["name"])

    def read(self, name: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotFoundError: there is none.
            RunError: it is too large.
        """
        if (size := self._size(name)) > LARGEST:
            raise RunError(
                f"{self.address}/{name} has {size:,} bytes, and at most {LARGEST:,} are read."
            )
        return b"".join(self.chunks(name, size))

    def chunks(self, name: str, size: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of a file.

        Raises:
            FileNotFoundError: there is none.
        """
        size = self._size(name) if size is None else size
        for start in range(0, size, PART):
            yield self._fs.cat_file(self._path(name), start=start, end=min(size, start + PART))

    def sha256(self, name: str) -> str:
        """Read a file, and return its hash."""
        digest, size, note = hashlib.sha256(), 0, self.progress.begin(f"read {name}")
        for chunk in self.chunks(name):
            digest.update(chunk)
            size += len(chunk)
            note(size)
        return digest.hexdigest()

    def write(self, name: str, data: bytes) -> None:
        """Write a file, and check that the store has these bytes.

        Raises:
            UnreachableError: it has others.
        """
        with self._written(name) as target:
            self._fs.pipe_file(target, data)
        self._check(name, hash_bytes(data))

    def upload(self, name: str, path: Path, hashes: FileHashes) -> None:
        """Copy a local file, and check that the store has its bytes.

        Raises:
            UnreachableError: it has others.
        """
        note = self.progress.begin(f"upload {name}", hashes.sha256)
        with self._written(name) as target:
            self._put(path, target, note)
        self._check(name, hashes)

    def _put(self, path: Path, target: str, note: Callable[[int], None]) -> None:
        if self.local_path is not None:  # the driver reports no progress
            with self._fs.waiting(), open(target, "xb") as copy:
                for chunk in _read_chunks(path, note):
                    copy.write(chunk)
            return
        if self._scheme in _SSH:
            self._fs.put_file(_read_chunks(path, note), target)
            return
        from fsspec.callbacks import Callback

        def update(_: int | None, done: int, **__: object) -> None:
            note(done)

        options: dict[str, Any] = {"callback": Callback(hooks={"progress": update})}
        if self._scheme in ("s3", "s3a"):
            options["chunksize"] = PART
        self._fs.put_file(str(path), target, **options)

    def has(self, name: str, hashes: FileHashes) -> bool:
        """Return whether the store has a file with these bytes.

        Its bytes are read only if the store has no checksum that agrees. S3 has one for
        each part, Google one for the file.
        """
        try:
            entry = self._fs.info(self._path(name))
        except FileNotFoundError:
            return False
        if int(entry["size"]) != hashes.bytes:
            return False
        checksums = {str(entry.get("ETag", "")).strip('"'), str(entry.get("md5Hash", ""))}
        return bool(checksums & hashes.etags) or self.sha256(name) == hashes.sha256

    def delete(self, names: Iterable[str]) -> None:
        """Delete files, one after another; one that is not there is left out."""
        for name in names:
            self._check_no_links(name)
            with suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))

    def delete_empty_folder(self, name: str) -> None:
        """Delete a folder without files, where a store has folders."""
        if not self.is_atomic:
            with suppress(OSError):
                self._fs.rmdir(self._path(name))

    def remove_partial_uploads(self) -> None:
        """Remove what a killed process was writing, as far as this process may.

        Only files of a run at this address are removed: other runs may be in folders below it.
        """
        with suppress(Exception):  # they only cost space, so an error is not an outage
            if not self.is_atomic:
                for name in self._find():
                    if _is_partial(name):
                        self._fs.rm_file(self._path(name))
            elif self._scheme in ("s3", "s3a"):
                bucket, _, key = self._root.rstrip("/").partition("/")
                found = self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/")
                for upload in found.get("Uploads", []):
                    if _is_of_run(upload["Key"].removeprefix(f"{key}/")):
                        self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _size(self, name: str) -> int:
        return int(self._fs.info(self._path(name))["size"])

    def _written(self, name: str) -> "_Target":
        self._check_no_links(name)
        return _Target(self._fs, self._path(name), is_atomic=self.is_atomic)

    def _check_no_links(self, name: str) -> None:
        """Reject a link in a local folder, which may lead anywhere if the folder was received."""
        path = self.local_path
        if path is None:
            return
        for part in name.split("/"):
            path = path / part
            if path.is_symlink():
                raise RunError(
                    f"{path} is a link, and a mirror is not written through links. Remove it, and "
                    "copy the rest with surestep mirror push."
                )

    def _check(self, name: str, hashes: FileHashes) -> None:
        if not self.has(name, hashes):
            raise UnreachableError(f"{self.address}/{name} has other bytes than were written")


def _read_chunks(path: Path, note: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the bytes of a local file; note how many were taken."""
    done = 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk
            done += len(chunk)
            note(done)


class _Target:
    """Where a file is written: in place, or under a hidden name that is changed afterwards."""

    def __init__(self, fs: Any, path: str, *, is_atomic: bool) -> None:
        self._fs, self._path = fs, path
        folder, _, name = path.rpartition("/")
        self._temporary = path if is_atomic else f"{folder}/{HIDDEN}{uuid4().hex}-{name}"
        if not is_atomic:
            fs.makedirs(folder, exist_ok=True)

    def __enter__(self) -> str:
        return self._temporary

    def __exit__(self, kind: object, *_: object) -> None:
        if self._temporary == self._path:
            return
        if kind is None:
            self._fs.mv(self._temporary, self._path)
            return
        with suppress(Exception):  # the error that stopped the writing is the one to raise
            self._fs.rm_file(self._temporary)


def _connect(address: str, scheme: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    if scheme in _BUCKETS and not address.partition("://")[2].partition("/")[2].strip("/"):
        raise ConfigError(
            f"{address} is a full bucket. Add a folder of the run: {address.rstrip('/')}/run"
        )
    try:
        import fsspec
    except ImportError:
        raise ConfigError(
            f"A mirror at {address} needs fsspec. Install it: pip install "
            f"{' '.join(['fsspec', *([_PACKAGES[scheme]] if scheme in _PACKAGES else [])])}"
        ) from None
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if scheme in ("s3", "s3a") and "config_kwargs" not in fsspec.config.conf.get("s3", {}):
        options["config_kwargs"] = deepcopy(_S3)  # botocore changes it
    try:
        if scheme in _SSH:
            ssh = SSHFileSystem(address)
            return ssh, ssh.root
        fs, root = fsspec.core.url_to_fs(address, **options)
    except ImportError:
        package = _PACKAGES.get(scheme, f"the package of fsspec for {scheme}://")
        raise ConfigError(
            f"A mirror at {address} needs a driver that is not installed. Install it: pip install "
            f"{package}"
        ) from None
    except ConfigError:
        raise
    except ValueError as error:
        known = "s3://, gs://, abfs://, sftp://, file://"
        raise ConfigError(
            f"There is no driver for {address}: {first_line(error)}. Known: {known}"
        ) from None
    except Exception as error:  # some drivers connect here, and raise whatever they do
        raise RunError(
            f"{address} cannot be opened: {describe_error(error)}. Check the address, the "
            "credentials and the network, and start again."
        ) from None
    if scheme in ("s3", "s3a"):
        fs.retries = _S3_ATTEMPTS
    return fs, str(root)
