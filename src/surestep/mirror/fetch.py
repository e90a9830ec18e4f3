"""Copy a run from its mirror to a local folder."""

from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from surestep.base.errors import CheckpointError, CorruptCheckpointError, RunError
from surestep.base.files import fsync, publish, temp_name
from surestep.mirror.link import make_link, read_link
from surestep.mirror.outline import complete_checkpoints, open_outline
from surestep.mirror.owner import read_owner
from surestep.mirror.records import CHECKPOINTS, EVENTS, is_record
from surestep.mirror.store import Store, hash_bytes
from surestep.record.checkpoint.discovery import list_checkpoints, scan_checkpoints, step_of
from surestep.record.checkpoint.manifest import (
    MANIFEST,
    check_sizes,
    checkpoint_error,
    read_manifest,
    verify,
)
from surestep.record.checkpoint.retention import explain_retention
from surestep.record.events import EventWriter
from surestep.record.io import explain_write_errors
from surestep.record.lock import LOCK
from surestep.record.run import Run

_FOR_LATER = frozenset({"milestone", "cycle"})  # kept, but not needed to train


def fetch_run(
    store: Store,
    listed: Mapping[str, int],
    folder: Path,
    print_line: Callable[[str], None],
    *,
    every: bool = False,
) -> None:
    """Copy a run from its mirror, unless the folder has it with the same steps or more.

    A checkpoint gets its name only if each of its bytes has the hash of its manifest. A damaged one
    is reported and left out. If none was ever complete in the mirror, the run begins from scratch.

    Args:
        store: of the mirror.
        listed: the files in it.
        folder: of the run here; the caller has locked it.
        print_line: prints what is copied, and what is damaged.
        every: copy all checkpoints, also those that a run does not need to continue.

    Raises:
        RunError: the folder has another run, or, with `every`, newer steps of this one.
        CheckpointError: every checkpoint in the mirror is damaged.
    """
    owned = read_owner(store) or {}
    run_id = owned.get("id")
    _check_same_run(store, folder, run_id)
    abandoned, here = find_abandoned(store, listed, folder), newest_step(folder)
    with open_outline(store, listed) as outlined:
        found = list_checkpoints(outlined / CHECKPOINTS)
        there = [path for path in found if path.name not in abandoned]
        link, is_run = make_link(folder, store.address, run_id), (folder / "config.json").exists()
        newest = max((step_of(p) for p in there if p.name not in link.damaged), default=-1)
        is_behind = not is_run or newest > here or (link.fetching and newest == here)
        if every and newest < here:
            raise RunError(
                f"{folder} has step {here} of this run, and {store.address} has step {newest}. To "
                f"fetch it into a different folder: surestep mirror fetch {store.address} FOLDER"
            )
        if not is_behind and not every:
            finish_fetching(folder)
            return
        wanted = there if every else _needed(outlined, there)
        count = f"{len(wanted)} checkpoint{'' if len(wanted) == 1 else 's'}"
        print_line(f"Fetching the run and {count} from {store.address} into {folder}.")
        if is_behind:  # until the records have the steps of the checkpoints
            replace(link, fetching=True).write(folder)
        damaged = [
            path
            for path in reversed(wanted)
            if not (
                _is_here(store, folder, path, print_line, is_newer=not is_behind)
                or _fetch(store, folder, path, print_line)
            )
        ]
    if wanted and len(damaged) == len(wanted):
        raise CheckpointError(
            f"Every checkpoint of {store.address} is damaged. surestep ckpt verify "
            f"{store.address} names the files."
        )
    elsewhere = {path.name for path in there} - {path.name for path in wanted}
    if is_behind:
        _fetch_records(store, listed, folder)
        if not owned.get("saved", True) and not there:
            record_restart(folder)
    replace(
        link,
        elsewhere=tuple(sorted(elsewhere)),
        damaged=tuple(sorted(path.name for path in damaged)),
        fetching=False,
    ).write(folder)


def find_abandoned(store: Store, listed: Mapping[str, int], folder: Path) -> set[str]:
    """Return the checkpoints of a mirror that a rollback of the local run has abandoned.

    If there are newer ones, another machine has continued from them, so they count.
    """
    link = read_link(folder)
    if link is None or link.address != store.address or not link.abandoned:
        return set()
    there, found = complete_checkpoints(listed), set[str]()
    for name in link.abandoned.keys() & set(there):
        with suppress(FileNotFoundError):  # it is deleted now
            manifest = store.read(f"{CHECKPOINTS}/{name}/{MANIFEST}")
            if hash_bytes(manifest).sha256 == link.abandoned[name]:
                found.add(name)
    newest = max((step_of(Path(name)) for name in there if name not in found), default=-1)
    return {name for name in found if step_of(Path(name)) > newest}


def newest_step(folder: Path) -> int:
    """Return the newest step that a run folder has saved; -1 without any."""
    found = list_checkpoints(folder / CHECKPOINTS)
    return step_of(found[-1]) if found else -1


def finish_fetching(folder: Path) -> None:
    """Write that the records of a run folder have all its steps, if an interrupted fetch denied it.

    That is so when the run has newer steps than its mirror, because it was resumed without it.
    """
    link = read_link(folder)
    if link is not None and link.fetching:
        replace(link, fetching=False).write(folder)


def _check_same_run(store: Store, folder: Path, run_id: str | None) -> None:
    link = read_link(folder)
    if (folder / "config.json").exists() and (link is None or link.id != run_id):
        raise RunError(
            f"{folder} has another run than {store.address}. To use a different folder: surestep "
            f"mirror fetch {store.address} FOLDER, and then --run FOLDER --checkpoint.mirror "
            f"{store.address}"
        )
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {LOCK}
    if link is None and names:
        raise RunError(
            f"{folder} has files that are not of this run, such as {min(names)}, and files of the "
            "run could replace them. Fetch it into a new folder: surestep mirror fetch "
            f"{store.address} FOLDER"
        )


def _needed(outlined: Path, there: list[Path]) -> list[Path]:
    """Return the checkpoints that training needs: the newest, the best and those of incidents."""
    try:
        good = scan_checkpoints(outlined / CHECKPOINTS).good
        reasons = explain_retention(outlined, Run(outlined).monitor, good)
    except RunError:  # of a run that was stopped early
        return there
    return [path for path in there if not set(reasons.get(path, ["unknown"])) <= _FOR_LATER]


def _fetch(store: Store, folder: Path, outlined: Path, print_line: Callable[[str], None]) -> bool:
    """Copy a checkpoint; return False if it is damaged."""
    final = folder / CHECKPOINTS / outlined.name
    temporary = temp_name(final, "tmp")
    rmtree(temporary, ignore_errors=True)
    try:
        manifest = read_manifest(outlined)
        check_sizes(outlined, manifest)
        with explain_write_errors(final):
            temporary.mkdir(parents=True)
        for name, expected in manifest.files.items():
            at = f"{CHECKPOINTS}/{outlined.name}/{name}"
            if _download(store, at, temporary / name, final) != expected.sha256:
                raise checkpoint_error(outlined, name, "it has other bytes than were written")
        with explain_write_errors(final):
            (temporary / MANIFEST).write_bytes((outlined / MANIFEST).read_bytes())
            fsync(temporary / MANIFEST)
            fsync(temporary)
            publish(temporary, final)
    except (CorruptCheckpointError, FileNotFoundError) as error:
        text = str(error).replace(str(outlined.parents[1]), store.address)
        print_line(f"{text} An older checkpoint is used instead.")
        return False
    finally:
        rmtree(temporary, ignore_errors=True)
    return True


def _download(store: Store, name: str, path: Path, shown: Path) -> str:
    """Write a file to a new path, and sync it; return its hash.

    Raises:
        RunError: the path cannot be written; the message names `shown` instead.
        Exception: whatever the driver raises, which is not an error of the local disk.
    """
    digest = sha256()
    with explain_write_errors(shown):
        path.touch(exist_ok=False)
    for chunk in store.chunks(name):
        digest.update(chunk)
        with explain_write_errors(shown), path.open("ab") as file:
            file.write(chunk)
    with explain_write_errors(shown):
        fsync(path)
    return digest.hexdigest()


def _is_here(
    store: Store,
    folder: Path,
    outlined: Path,
    print_line: Callable[[str], None],
    *,
    is_newer: bool,
) -> bool:
    """Return whether a run folder has a checkpoint undamaged, by reading all its files.

    A checkpoint of the same step with other bytes is one that the run left, if the mirror has newer
    steps; if the run folder is newer, it is not replaced.
    """
    here = folder / CHECKPOINTS / outlined.name
    try:
        verify(here)
    except CheckpointError:
        return False
    if (here / MANIFEST).read_bytes() == (outlined / MANIFEST).read_bytes():
        return True
    if is_newer:
        print_line(f"{here} differs from that of {store.address}, and is not replaced.")
    return is_newer


def _fetch_records(store: Store, listed: Mapping[str, int], folder: Path) -> None:
    """Copy everything but checkpoints; config.json last, because it makes the folder a run."""
    for name in sorted(filter(is_record, listed), key=lambda name: name == "config.json"):
        path = _make_parents(folder, name) / name.rpartition("/")[2]
        temporary = temp_name(path, "tmp")
        with explain_write_errors(path):
            temporary.unlink(missing_ok=True)
        try:
            _download(store, name, temporary, path)
            with explain_write_errors(path):
                temporary.replace(path)
                fsync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def record_restart(folder: Path) -> None:
    """Write that the run of a folder begins from scratch, whichever checkpoints its events have.

    Records are copied to a mirror before a checkpoint is complete in it.
    """
    path = folder / EVENTS
    if path.exists():
        with explain_write_errors(path), closing(EventWriter(path)) as events:
            events.write("restart", step=0)


def _make_parents(folder: Path, name: str) -> Path:
    """Make the folders above a record, and return the last.

    Raises:
        RunError: one is a link, which may lead out of the run folder.
    """
    for part in name.split("/")[:-1]:
        folder = folder / part
        if folder.is_symlink():
            raise RunError(
                f"{folder} is a link, and the records of a run are not written through links. "
                "Remove it, and try again."
            )
        with explain_write_errors(folder):
            folder.mkdir(exist_ok=True)
    return folder
