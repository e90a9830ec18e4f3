"""A store has the bytes that were written, or says that it has not."""

import builtins
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.mirror import progress
from surestep.mirror import store as module
from surestep.mirror.store import Store, UnreachableError, hash_bytes, hash_file

DATA = bytes(range(256)) * 40


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    address = str(tmp_path / "mirror") if request.param == "disk" else f"memory://{uuid4()}/run"
    return Store(address)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


def test_written_files_are_listed_with_their_sizes(store, file):
    assert store.list() == {}
    store.write("a.json", b"{}")
    store.upload("checkpoints/step-00000001/model", file, hash_file(file))
    assert store.list() == {"a.json": 2, "checkpoints/step-00000001/model": len(DATA)}
    assert store.read("checkpoints/step-00000001/model") == DATA
    assert store.sha256("a.json") == hash_bytes(b"{}").sha256


def test_missing_file_is_not_found(store):
    assert not store.has("none", hash_bytes(b""))
    with pytest.raises(FileNotFoundError):
        store.read("none")
    store.delete(["none"])


def test_listing_that_fails_is_an_error_and_not_an_empty_mirror(tmp_path, monkeypatch):
    store = Store(str(tmp_path / "mirror"))
    store.write("a.json", b"{}")
    store.write("checkpoints/step-00000001/model", DATA)
    ls = store._fs.ls
    for broken in ("mirror", "checkpoints", "step-00000001"):

        def fail(path, broken=broken, **options):
            if path.endswith(broken):
                raise OSError(5, "Input/output error")
            return ls(path, **options)

        monkeypatch.setattr(store._fs, "ls", fail)
        with pytest.raises(OSError, match="Input/output error"):
            store.list()


def test_file_with_other_bytes_is_not_taken_as_copied(store, file):
    store.write("file", DATA[:-1] + b"x")
    assert not store.has("file", hash_file(file))
    store.write("file", b"")
    assert not store.has("file", hash_file(file))
    store.upload("file", file, hash_file(file))
    assert store.has("file", hash_file(file))


def test_store_that_changes_a_byte_is_noticed(tmp_path, file, monkeypatch):
    store = Store(str(tmp_path / "mirror"))
    put = store._put

    def put_other(source, target, note):
        put(source, target, note)
        data = bytearray(Path(target).read_bytes())
        data[7] ^= 1
        Path(target).write_bytes(data)

    monkeypatch.setattr(store, "_put", put_other)
    with pytest.raises(UnreachableError, match="has other bytes than were written"):
        store.upload("file", file, hash_file(file))


def test_file_that_is_written_in_several_pieces_appears_at_once(tmp_path, file, monkeypatch):
    store = Store(str(tmp_path / "mirror"))
    store.write("file", b"before")

    def fail(source, target, note):
        Path(target).write_bytes(DATA[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_put", fail)
    with pytest.raises(OSError, match="No space"):
        store.upload("file", file, hash_file(file))
    assert store.read("file") == b"before"
    assert [path.name for path in (tmp_path / "mirror").iterdir()] == ["file"]


def test_progress_is_made_by_each_chunk_that_is_hashed_uploaded_and_read_back(
    store, file, monkeypatch
):
    monkeypatch.setattr(module, "_CHUNK", 4096)
    times = iter(range(1, 1000))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(times)))
    store.progress.restart()
    seen = []
    for _ in range(5):
        hashes = hash_file(file, store.progress.begin("hash"))
        seen.append(store.progress.at)
        with suppress(UnreachableError), monkeypatch.context() as patch:
            patch.setattr(store, "has", lambda *_: store.sha256("file") == "other")
            store.upload("file", file, hashes)
    assert seen[0] >= 3  # three chunks
    assert seen[0] < seen[1] < seen[2] <= seen[3] == seen[4]


def test_file_of_a_killed_process_is_removed(tmp_path):
    store = Store(str(tmp_path))
    folder = tmp_path / "checkpoints" / "step-00000003"
    folder.mkdir(parents=True)
    (folder / ".part-0-model").write_bytes(DATA)
    (tmp_path / ".part-0-events.jsonl").write_bytes(DATA)
    (tmp_path / "model").write_bytes(DATA)
    assert store.list() == {"model": len(DATA)}
    store.remove_partial_uploads()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model"]


def test_names_that_leave_the_folder_are_not_listed(store):
    bad = ("../bad", "a/../../bad", "/bad", "a//b", ".hidden", "a/.hidden/b", "a\\b", "a\0", "a\n")
    for name in ("good", *bad):
        assert module.is_plain(name) == (name == "good")


def test_hashes_of_a_file_agree_with_the_checksums_of_s3(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART", 4096)
    path = tmp_path / "file"
    path.write_bytes(DATA)  # 2.5 parts
    parts = [module._md5(DATA[at : at + 4096]).digest() for at in range(0, len(DATA), 4096)]
    whole, of_parts = module._md5(DATA).hexdigest(), module._md5(b"".join(parts)).hexdigest()
    found = hash_file(path)
    assert found.etags >= {whole, f"{of_parts}-3"}
    assert (found.bytes, found.sha256) == (len(DATA), hash_bytes(DATA).sha256)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("sftp://host/run", "pip install paramiko"),
        ("gs://bucket/run", "pip install gcsfs"),
        ("xx://bucket/run", "no driver for xx://bucket/run"),
    ],
)
def test_missing_driver_is_named_with_its_package(address, text, monkeypatch):
    for name in ("paramiko", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=text):
        Store(address)


def test_missing_fsspec_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *more):
        if name.partition(".")[0] == "fsspec":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install fsspec s3fs"):
        Store("s3://bucket/run")


class Uploads:
    """Stands for the S3 driver: lists unfinished uploads, and notes which are aborted."""

    def __init__(self, keys, error=None):
        self.keys, self.error, self.aborted = keys, error, []

    def call_s3(self, method, **options):
        if self.error is not None:
            raise self.error
        found = [key for key in self.keys if key.startswith(options["Prefix"])]
        return {"Uploads": [{"Key": key, "UploadId": key} for key in found]}

    def abort_mpu(self, bucket, key, upload):
        self.aborted.append(key)


OF_THE_RUN = ["events.jsonl", "checkpoints/step-00000003/model.safetensors"]
OF_OTHERS = [
    "other/events.jsonl",
    "other/checkpoints/step-00000003/model.safetensors",
    "checkpoints/notes/file",
]


def test_unfinished_uploads_of_other_runs_are_not_aborted(monkeypatch):
    uploads = Uploads([f"runs/{name}" for name in OF_THE_RUN + OF_OTHERS])
    monkeypatch.setattr(module, "_connect", lambda *_: (uploads, "bucket/runs"))
    Store("s3://bucket/runs").remove_partial_uploads()
    assert uploads.aborted == [f"runs/{name}" for name in OF_THE_RUN]


def test_unfinished_uploads_that_may_not_be_listed_are_left(monkeypatch):
    uploads = Uploads([], PermissionError("Access Denied"))
    monkeypatch.setattr(module, "_connect", lambda *_: (uploads, "bucket/runs"))
    Store("s3://bucket/runs").remove_partial_uploads()


def test_partial_files_of_other_runs_are_not_removed(tmp_path):
    for name in OF_THE_RUN + OF_OTHERS:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".part-0-{path.name}").write_bytes(DATA)
    Store(str(tmp_path)).remove_partial_uploads()
    assert len(list(tmp_path.rglob(".part-*"))) == len(OF_OTHERS)


@pytest.mark.parametrize("address", ["s3://bucket", "s3://bucket/", "gs://bucket"])
def test_full_bucket_is_not_a_mirror(address):
    with pytest.raises(ConfigError, match=r"is a full bucket.*bucket/run"):
        Store(address)


def test_driver_that_connects_at_once_and_fails_is_an_error_with_the_address(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionRefusedError(111, "Connection refused\nmore text")

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    text = r"^ftp://host/run cannot be opened: ConnectionRefusedError: .*Connection refused\. Check"
    with pytest.raises(RunError, match=text):
        Store("ftp://host/run")
