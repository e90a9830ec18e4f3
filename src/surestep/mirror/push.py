"""Copy what a mirror lacks of a run folder, and delete what the run folder deleted.

The run folder is the queue: each pass compares it with what the mirror has, so a pass after a kill
or an outage copies the rest. The order makes every prefix of a pass harmless:

1. the files of a checkpoint, each verified;
2. the records, which then have all its steps;
3. its manifest. A checkpoint without one is not a complete checkpoint, here as in a run folder;
4. only if every local checkpoint is complete, those that the run folder deleted are deleted, their
   manifest first.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from surestep.base.errors import CheckpointError, RunError
from surestep.base.files import temp_name
from surestep.mirror.link import MirrorLink
from surestep.mirror.records import CHECKPOINTS, Signature, list_records, signature_of
from surestep.mirror.store import FileHashes, Store, hash_bytes, hash_file
from surestep.record.checkpoint.discovery import (
    has_checkpoint_name,
    list_checkpoints,
    step_of,
)
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    CheckpointVanishedError,
    checkpoint_error,
    read_manifest,
)
from surestep.record.checkpoint.retention import delete as delete_local
from surestep.record.final_wait import Sent
from surestep.record.io import read_regular

RECORDS_S = 30.0  # between two copies of records that grow
LOOK_S = 60.0  # between two listings of the mirror: it may be deleted or damaged meanwhile
COUNT_S = 0.5  # between two counts of what is sent, each of which lists the run folder
_RECORDS_RATE = 2**20  # bytes a second: large records are copied less often
_IN_MEMORY = 2**22  # bytes of a record that is read at once
_AT_ONCE = frozenset({"config.json", "plan.json", "environment.json", "status.json"})
_DAMAGED = "damaged-"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Pusher:
    """Copies a run folder to a store, in passes.

    Args:
        folder: of the run.
        store: of the mirror.
        link: of the run folder to this mirror.
        check: called before each file is written; raises an error to stop.
        on_complete: called when the mirror has a complete checkpoint.
        every_byte: compare each file of the mirror once, not only its size.

    Attributes:
        copied: files that were written to the mirror.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        link: MirrorLink,
        check: Callable[[], None] = lambda: None,
        *,
        on_complete: Callable[[], None] = lambda: None,
        every_byte: bool = False,
    ) -> None:
        self.folder = folder
        self.store = store
        self.link = link
        self._link_lock = Lock()  # the thread that trains changes the link at a rollback
        self._is_link_stale = False  # in the run folder, because it could not be written
        self._check = check
        self._on_complete = on_complete
        self._every_byte = every_byte
        self._complete: dict[str, Signature | None] = {}
        self._there: set[str] = set()  # checkpoints in the mirror, complete or not
        self._seen: set[str] = set()  # checkpoints that the run folder had since the start
        self._looked_at: float | None = None
        self._must_look = False
        self._records: dict[str, Signature] = {}
        self._records_at = -RECORDS_S
        self._bad: dict[str, Signature | None] = {}  # damaged in the run folder
        self._sent, self._counted_at = Sent(0, 0), float("-inf")
        self.copied = 0

    def missing(self) -> list[str]:
        """Return the checkpoints and records that the mirror lacks."""
        return [*(path.name for path in self._incomplete()), *self._changed()]

    def count_rest(self) -> int:
        """Return the bytes of the files that the mirror lacks, as far as they are not sent yet."""
        names = self._changed()
        for path in self._incomplete():
            with suppress(OSError):
                names += [f"{CHECKPOINTS}/{path.name}/{file}" for file in os.listdir(path)]
        sizes = {name: self._size(name) for name in names}
        done = self.store.progress.done
        return sum(size - min(size, done(f"upload {name}")) for name, size in sizes.items())

    def count_sent(self) -> Sent:
        """Return how many bytes are sent since the first call, and of how many."""
        if time.monotonic() - self._counted_at > COUNT_S:
            rest, self._counted_at = self.count_rest(), time.monotonic()
            total = max(self._sent.total, rest)
            self._sent = Sent(total - rest, total)
        return self._sent

    def look_again(self) -> None:
        """List the mirror in the next pass: it may have lost files while it did not answer."""
        self._must_look = True

    def finish_fetching(self) -> None:
        """Write that the records of the run folder have all its steps, as the mirror does."""
        with self._link_lock:
            if self.link.fetching:
                self._change_link(fetching=False)

    def push(self, *, is_last: bool = False) -> None:
        """Make one pass. If the mirror is full, deleted checkpoints make way for newer ones.

        Args:
            is_last: copy all records that changed, however recently they were copied.

        Raises:
            CheckpointError: a checkpoint is damaged in the run folder; the others were copied.
            Exception: whatever the driver raises; the next pass copies the rest.
        """
        while True:
            try:
                return self._pass(is_last=is_last)
            except OSError as full:
                if full.errno not in _FULL or not self._free_space():
                    raise

    def _pass(self, *, is_last: bool) -> None:
        if self._is_link_stale:
            with self._link_lock:
                self._change_link()
        if is_last or self._is_look_due() or self._incomplete():
            self._look()
        self._push_records(self._changed() if is_last else self._due())
        error: CheckpointError | None = None
        while incomplete := self._incomplete():
            self._check()
            try:
                self._push_checkpoint(incomplete[-1])
            except CheckpointVanishedError:
                continue
            except CheckpointError as damaged:
                self._bad[incomplete[-1].name] = signature_of(incomplete[-1] / MANIFEST)
                error = damaged
        self._prune()
        if is_last:
            self._push_records(self._changed())
        if error is not None:
            raise error

    def _is_look_due(self) -> bool:
        if self._looked_at is None or self._must_look:
            return True
        return time.monotonic() - self._looked_at >= LOOK_S

    def _look(self) -> None:
        """List the mirror, and find what is complete there; what it lost is copied again."""
        if self._looked_at is None:
            self.store.remove_partial_uploads()
        listed = self.store.list()
        self._records = {name: self._records[name] for name in self._records if name in listed}
        parts = [name.split("/") for name in listed]
        self._there = {
            p[1] for p in parts if len(p) > 2 and p[0] == CHECKPOINTS and has_checkpoint_name(p[1])
        }
        known, complete = self._complete, dict[str, Signature | None]()
        for path in list_checkpoints(self.folder / CHECKPOINTS):
            if path.name not in self._there or path.name in self.link.damaged:
                continue
            now = signature_of(path / MANIFEST)
            with suppress(FileNotFoundError, CheckpointError):
                if self._is_complete(path, listed, is_known=known.get(path.name) == now):
                    complete[path.name] = now
        self._complete = complete  # at once: `missing()` may be asked meanwhile
        if complete:
            self._on_complete()
        self._looked_at, self._must_look = time.monotonic(), False

    def _is_complete(self, path: Path, listed: Mapping[str, int], *, is_known: bool) -> bool:
        """Return whether the mirror has a checkpoint, by its manifest and the sizes of its files.

        Args:
            path: of the checkpoint in the run folder.
            listed: the files of the mirror.
            is_known: it was compared or copied before.
        """
        if self._every_byte and not is_known:
            return False
        below = f"{CHECKPOINTS}/{path.name}"
        files = read_manifest(path).files
        if any(listed.get(f"{below}/{file}") != digest.bytes for file, digest in files.items()):
            return False
        manifest = read_regular(path / MANIFEST)
        if listed.get(f"{below}/{MANIFEST}") != len(manifest):
            return False
        return is_known or self.store.read(f"{below}/{MANIFEST}") == manifest

    def _incomplete(self) -> list[Path]:
        """Return the checkpoints that the mirror lacks, oldest first."""
        found = []
        for path in list_checkpoints(self.folder / CHECKPOINTS):
            self._seen.add(path.name)
            now = signature_of(path / MANIFEST)
            if now not in (None, self._complete.get(path.name), self._bad.get(path.name)):
                found.append(path)
        return found

    def _push_checkpoint(self, path: Path) -> None:
        below, before = f"{CHECKPOINTS}/{path.name}", signature_of(path / MANIFEST)
        with _kept(path, self.folder) as kept:
            manifest = read_manifest(kept)
            text = read_regular(kept / MANIFEST)
            is_there = self.store.has(f"{below}/{MANIFEST}", hash_bytes(text))
            if path.name in self._there and not is_there:  # of the same step, but other bytes
                self._delete_file(f"{below}/{MANIFEST}")
            self._there.add(path.name)
            for file, expected in manifest.files.items():
                self._check()  # hashing the file may take long
                hashes = self._hash(path, kept / file)
                if (hashes.bytes, hashes.sha256) != (expected.bytes, expected.sha256):
                    raise checkpoint_error(path, file, "it has other bytes than were written")
                if not self.store.has(f"{below}/{file}", hashes):
                    if is_there:  # incomplete from here
                        self._delete_file(f"{below}/{MANIFEST}")
                        is_there = False
                    self._upload(f"{below}/{file}", kept / file, hashes)
            self._push_records(self._changed())
            if not is_there:
                self._write(f"{below}/{MANIFEST}", text)
        self._complete[path.name] = before
        self._on_complete()
        if path.name in self.link.damaged:
            rest = tuple(name for name in self.link.damaged if name != path.name)
            with self._link_lock:
                self._change_link(damaged=rest)

    def _hash(self, checkpoint: Path, file: Path) -> FileHashes:
        """Read a file of a checkpoint, which may be read through a link."""
        note = self.store.progress.begin(f"hash {checkpoint.name}/{file.name}")
        try:
            return hash_file(file, note)
        except (OSError, ValueError) as error:
            raise checkpoint_error(checkpoint, file.name, error) from error

    def _upload(self, name: str, path: Path, hashes: FileHashes) -> None:
        self._check()
        self.store.upload(name, path, hashes)
        self.copied += 1

    def _delete_file(self, name: str) -> None:
        self._check()
        self.store.delete([name])

    def _write(self, name: str, data: bytes) -> None:
        self._check()
        self.store.write(name, data)
        self.store.progress.begin(f"write {name}", hash_bytes(data).sha256)(1)
        self.copied += 1

    def _prune(self) -> None:
        """Delete the checkpoints that the run folder has deleted, if it has newer ones."""
        local = {path.name for path in list_checkpoints(self.folder / CHECKPOINTS)}
        if not local or self._bad.keys() & local or not local <= self._complete.keys():
            return
        for name in self._list_obsolete(local):
            self._delete(name)
            self.store.progress.begin(f"delete {name}")(1)
        self._forget_abandoned(local)

    def _list_obsolete(self, local: set[str]) -> list[str]:
        """Return the checkpoints of the mirror that the run folder has deleted.

        One that is newer than all of the run folder was deleted by a rollback if it was there since
        the start. Otherwise another machine wrote it, and only the mirror has it.
        """
        newest = max((_step_of_name(name) for name in local), default=-1)
        return [
            name
            for name in sorted(self._there - local - set(self.link.elsewhere))
            if name in self._seen or name in self.link.abandoned or _step_of_name(name) < newest
            # This may be the only good copy.
            if not (self.folder / CHECKPOINTS / f"{_DAMAGED}{name}").exists()
        ]

    def delete_abandoned(self, checkpoints: Iterable[Path]) -> None:
        """Delete checkpoints of the run folder from which no step will continue.

        They are recorded first, so that the next process does not fetch them after a kill.
        """
        paths = list(checkpoints)
        found = {path.name: _hash_manifest(path) for path in paths}
        hashes = {name: sha256 for name, sha256 in found.items() if sha256 is not None}
        with self._link_lock:
            self._change_link(abandoned={**self.link.abandoned, **hashes})
        delete_local(paths)

    def _change_link(self, **changes: Any) -> None:
        """Change the link, of which the caller has the lock, here and in the run folder.

        A full disk ends neither the run nor its copies: the next pass writes the link again.
        """
        self.link = replace(self.link, **changes)
        self._is_link_stale = True
        with suppress(RunError):
            self.link.write(self.folder)
            self._is_link_stale = False

    def _forget_abandoned(self, local: set[str]) -> None:
        """Forget the abandoned checkpoints that the mirror does not have any more.

        A rollback may be deleting them now. A checkpoint of the same step may have replaced one.
        """
        with self._link_lock:
            rest = {
                name: sha256
                for name, sha256 in self.link.abandoned.items()
                if name in self._there
                and (name not in local or self._hash_local(name) in (None, sha256))
            }
            if rest != self.link.abandoned:
                self._change_link(abandoned=rest)

    def _hash_local(self, name: str) -> str | None:
        return _hash_manifest(self.folder / CHECKPOINTS / name)

    def _free_space(self) -> bool:
        """Delete what the run folder has deleted, but the newest; return whether there was any."""
        complete = [
            parts[1]
            for parts in (name.split("/") for name in self.store.list())
            if len(parts) == 3 and (parts[0], parts[2]) == (CHECKPOINTS, MANIFEST)
        ]
        newest = max(filter(has_checkpoint_name, complete), key=_step_of_name, default=None)
        local = {path.name for path in list_checkpoints(self.folder / CHECKPOINTS)}
        obsolete = [name for name in self._list_obsolete(local) if name != newest]
        for name in obsolete:
            self._delete(name)
        return bool(obsolete)

    def _delete(self, name: str) -> None:
        """Delete a checkpoint of the mirror, its manifest first."""
        below = f"{CHECKPOINTS}/{name}/"
        files = [file for file in self.store.list() if file.startswith(below)]
        for file in sorted(files, key=lambda file: not file.endswith(f"/{MANIFEST}")):
            self._delete_file(file)
        self.store.delete_empty_folder(below.rstrip("/"))
        self._there.discard(name)
        self._complete.pop(name, None)

    def _changed(self) -> list[str]:
        """Return the records that changed since they were copied."""
        return [
            name
            for name, signature in list_records(self.folder)
            if self._records.get(name) != signature
        ]

    def _due(self) -> list[str]:
        """Return the changed records that are copied now; those that grow wait for a while."""
        changed = self._changed()
        size = sum(self._size(name) for name in changed)
        pause = max(RECORDS_S, size / _RECORDS_RATE)
        if time.monotonic() - self._records_at >= pause:
            return changed
        return [name for name in changed if name in _AT_ONCE]

    def _size(self, name: str) -> int:
        found = signature_of(self.folder / name)
        return 0 if found is None else found[1]

    def _push_records(self, names: list[str]) -> None:
        # config.json last: it makes a folder a run.
        for name in sorted(names, key=lambda name: (name == "config.json", name)):
            path = self.folder / name
            before = signature_of(path)
            with suppress(FileNotFoundError):
                is_new = name not in self._records
                if before is None or before[1] <= _IN_MEMORY:
                    data = read_regular(path)
                    if not (is_new and self.store.has(name, hash_bytes(data))):
                        self._write(name, data)
                else:
                    self._push_large(path, name)
                if before is not None:
                    self._records[name] = before
        if not set(names) <= _AT_ONCE:
            self._records_at = time.monotonic()

    def _push_large(self, path: Path, name: str) -> None:
        """Upload a copy of a record, which may grow meanwhile."""
        copy = temp_name(self.folder / path.name, "tmp")
        try:
            shutil.copyfile(path, copy)
            hashes = hash_file(copy, self.store.progress.begin(f"hash {name}"))
            self._upload(name, copy, hashes)
        finally:
            copy.unlink(missing_ok=True)


def _hash_manifest(path: Path) -> str | None:
    """Return the SHA-256 of the manifest of a checkpoint; None if it cannot be read."""
    try:
        return hash_bytes(read_regular(path / MANIFEST)).sha256
    except (OSError, ValueError):
        return None


def _step_of_name(name: str) -> int:
    return step_of(Path(name))


@contextmanager
def _kept(path: Path, folder: Path) -> Iterator[Path]:
    """Yield a folder with hard links to a checkpoint's files, which keeps them while they are read.

    Retention may delete the checkpoint before a slow upload ends. Without links, the upload starts
    again with a newer one, and may never end. On a file system without hard links, the checkpoint
    itself is yielded.
    """
    links = temp_name(folder / path.name, "tmp")
    shutil.rmtree(links, ignore_errors=True)
    try:
        yield links if _link_files(path, links) else path
    finally:
        shutil.rmtree(links, ignore_errors=True)


def _link_files(path: Path, links: Path) -> bool:
    """Make hard links to a checkpoint's files; return False if the file system has none."""
    names = [*read_manifest(path).files, MANIFEST]
    links.mkdir()
    for name in names:
        try:
            os.link(path / name, links / name)
        except FileNotFoundError as error:  # the file, or the whole checkpoint
            raise checkpoint_error(path, name, error) from error
        except OSError:
            return False
    return True
