"""Open the mirror of a run: check it, become its writer, and fetch the run if it is there."""

import errno
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError, RunError, SurestepError
from surestep.base.secrets import first_line
from surestep.base.typed_targets import was_typed
from surestep.mirror.fetch import (
    fetch_run,
    find_abandoned,
    finish_fetching,
    newest_step,
    record_restart,
)
from surestep.mirror.link import MirrorLink, make_link, read_copied, read_link
from surestep.mirror.outline import check_config, complete_checkpoints
from surestep.mirror.owner import Owner, read_owner
from surestep.mirror.records import CHECKPOINTS, EVENTS, is_of_run
from surestep.mirror.store import Store
from surestep.mirror.uploader import LateStart, Uploader
from surestep.record.checkpoint.discovery import list_checkpoints, quarantine, step_of
from surestep.record.checkpoint.manifest import MANIFEST
from surestep.record.io import open_regular, os_error_hint, parse_json, read_regular
from surestep.record.lock import RunLock
from surestep.record.schemas import CONFIG, NewerFormatError, validate

_NOT_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOTDIR)


def open_store(address: str, folder: Path | None = None) -> Store:
    """Return the store of a mirror; nothing is read yet.

    Args:
        address: of the mirror.
        folder: of the run; it must be apart from the mirror.

    Raises:
        ConfigError: there is no driver, or one folder is in the other.
    """
    store = Store(address)
    place = store.local_path
    if folder is not None and place is not None:
        here, there = folder.resolve(), place.resolve()
        if here == there or here in there.parents or there in here.parents:
            raise ConfigError(
                f"The mirror {address} and the run folder {folder} are not apart. Set "
                "checkpoint.mirror to a folder on another disk, such as /backup/run."
            )
    return store


def adopt_copy(folder: Path) -> None:
    """Make a run folder of a copy of a mirror, such as one made by cp, if a folder is one.

    Raises:
        RunError: another process holds the folder, or it cannot be written.
    """
    if read_copied(folder) is None:
        return
    lock = RunLock(folder)
    try:
        copied, link = read_copied(folder), read_link(folder)
        if copied is None or link is None:  # another process has just done it
            return
        paths = list_checkpoints(folder / CHECKPOINTS)
        partial = [path for path in paths if not (path / MANIFEST).exists()]
        if not copied.get("saved", True) and partial == paths:
            for path in partial:
                quarantine(path)
            record_restart(folder)
        link.write(folder)
    finally:
        lock.release()


def check_typed(address: str, folder: Path) -> None:
    """Check that the user typed the mirror that a run folder names, which anyone may have written.

    Args:
        address: of the mirror.
        folder: of the run.

    Raises:
        ConfigError: it was not typed on this machine.
    """
    link = read_link(folder)
    if link is None or not was_typed(link.id, address):
        raise ConfigError(
            f"{folder} names the mirror {address}, which was not typed on this machine, and the "
            "folder may come from anyone. To resume without a mirror, pass --checkpoint.mirror "
            f"none. If the run may write there, type: surestep resume {shlex.quote(str(folder))} "
            f"--checkpoint.mirror {shlex.quote(address)}"
        )


def open_mirror(
    address: str, folder: Path, print_line: Callable[[str], None], *, is_source: bool
) -> Uploader:
    """Return the uploader of a run, which is not started yet.

    Args:
        address: of the mirror.
        folder: of the run, which need not exist.
        print_line: prints what is waited for, fetched and damaged.
        is_source: the run is given by this address, so what the folder lacks is fetched.

    Raises:
        ConfigError: there is no driver, or one folder is in the other.
        RunError: the mirror cannot be used, another process writes it, or it has another run.
        CheckpointError: every checkpoint in the mirror is damaged.
    """
    store = open_store(address, folder)
    linked = read_link(folder)
    if is_source and linked is not None and linked.address != address:
        raise RunError(
            f"{folder} is the folder of {linked.address}, not of {address}. To copy it there too: "
            f"--run {folder} --checkpoint.mirror {address}"
        )
    link = make_link(folder, address)
    outage: Exception | None = None
    owner = Owner(store, link.id, has_started=linked is not None)
    try:
        with store.announce_silence(print_line):
            if is_source:
                _fetch(store, owner, folder, print_line)
            else:
                become_writer(store, owner, folder, print_line)
                finish_fetching(folder)
        link = make_link(folder, address, owner.run_id)
    except (SurestepError, KeyboardInterrupt):
        owner.try_release()
        raise
    except Exception as error:  # whatever the driver raises
        owner.try_release()
        known = explain(address, error)
        if known is not None:
            raise known from None
        if is_source:
            raise RunError(
                f"{address} cannot be reached: {_one_line(error)}. Try again later, or train from "
                f"the local folder: --run {folder} --checkpoint.mirror {address}"
            ) from None
        outage = error

    full = folder.absolute()  # the thread starts later, and the script may change its directory

    def join() -> None:
        become_writer(store, owner, full, print_line)

    late = None if outage is None else LateStart(outage, join)
    return Uploader(folder, store, link, owner, late)


def become_writer(
    store: Store, owner: Owner, folder: Path, print_line: Callable[[str], None]
) -> None:
    """Become the writer of the mirror of a local run, which is the one to copy.

    Raises:
        RunError: the mirror has another run, or newer steps of this one, or is in use.
    """
    left = _check_may_write(store, owner, folder)
    if owner.wait(print_line):
        left = _check_may_write(store, owner, folder)
    owner.acquire(print_line)
    if left:
        print_line(
            f"{store.address} has a run that ended before its first checkpoint was copied. This "
            "run replaces it."
        )
        store.delete(left)


def _check_may_write(store: Store, owner: Owner, folder: Path) -> list[str]:
    """Check that a local run may be copied to a mirror, and take up what the mirror has of it.

    Returns:
        The files to delete: those of another run that never saved a checkpoint there.
    """
    listed = store.list()
    found = read_owner(store)
    if found is None:
        _check_no_other_files(store, listed)
    there = complete_checkpoints(listed)
    is_claimed = found is not None and found.get("started", True)
    has_run = "config.json" in listed or is_claimed or _lacks_config(listed)
    owner.has_saved = bool(there) or (has_run if found is None else found.get("saved", True))
    left: list[str] = []
    if has_run and (found is None or found["id"] != owner.run_id):
        if _has_same_run(store, listed, folder, there):
            _attach(store, owner, folder, found, there)
        elif not owner.has_saved:
            left = [name for name in listed if is_of_run(name)]
        else:
            raise RunError(
                f"{store.address} has another run already. Set a different checkpoint.mirror; or, "
                "to continue that run here, pass its address as the run folder: --run "
                f"{store.address}"
            )
    abandoned = find_abandoned(store, listed, folder)
    newest = max((step_of(Path(name)) for name in there if name not in abandoned), default=-1)
    if newest > newest_step(folder):
        raise RunError(
            f"{store.address} has step {newest} of this run, and {folder} has step "
            f"{max(0, newest_step(folder))}. To continue from the mirror: --run {store.address}"
        )
    link = read_link(folder)
    is_whole = newest < newest_step(folder) and link is not None and link.address == store.address
    if link is not None and link.fetching and not is_whole:
        raise RunError(
            f"{folder} was not fetched completely from {link.address}. To complete it: surestep "
            f"mirror fetch {link.address} {shlex.quote(str(folder))}"
        )
    return left


def _has_same_run(
    store: Store, listed: Mapping[str, int], folder: Path, there: Iterable[str]
) -> bool:
    """Return whether a mirror has the run of a folder, although one of them lost its id.

    Events have times, so two runs share none. Checkpoints have not: two runs of one seed share
    them, so they decide only if there are no events to compare.
    """
    if EVENTS in listed and (folder / EVENTS).exists():
        copied = next(store.chunks(EVENTS), b"")
        with open_regular(folder / EVENTS) as file:
            lines = set(file.read(len(copied)).splitlines(keepends=True)) - {b"\n"}
        if lines and copied:
            return not lines.isdisjoint(copied.splitlines(keepends=True))
    names = [f"{CHECKPOINTS}/{name}/{MANIFEST}" for name in there]
    shared = [name for name in names if (folder / name).is_file()]
    return bool(shared) and all(store.read(n) == read_regular(folder / n) for n in shared)


def _attach(
    store: Store,
    owner: Owner,
    folder: Path,
    found: Mapping[str, Any] | None,
    there: Iterable[str],
) -> None:
    """Give a run the id that its mirror has, or has lost, and keep what only the mirror has."""
    if found is not None:
        owner.adopt(found)
    if read_link(folder) is None:
        lacking = (name for name in there if not (folder / CHECKPOINTS / name).exists())
        MirrorLink(owner.run_id, store.address, elsewhere=tuple(lacking)).write(folder)


def _check_no_other_files(store: Store, listed: Mapping[str, int]) -> None:
    """Reject a folder that has files and is not a mirror, since the run would replace some.

    A mirror has a `mirror.json`, which is written first. One that other tools copied may lack it.
    """
    if not listed:
        return
    _check_has_config(store, listed)
    other = min(listed)
    if "config.json" in listed:
        try:
            validate(CONFIG, parse_json(store.read("config.json")))
            return
        except NewerFormatError:
            return
        except ValueError:
            other = "config.json"
    raise RunError(
        f"{store.address} has files that are not of a run, such as {other}, and a run could "
        "replace them. Set a new or an empty folder instead."
    )


def _lacks_config(listed: Mapping[str, int]) -> bool:
    """Return whether a mirror has checkpoints and no config.json, which is copied before them."""
    has_checkpoints = any(name.startswith(f"{CHECKPOINTS}/") for name in listed)
    return has_checkpoints and "config.json" not in listed


def _check_has_config(store: Store, listed: Mapping[str, int]) -> None:
    if _lacks_config(listed):
        raise RunError(
            f"{store.address} has checkpoints but no config.json, so it is damaged or being "
            "deleted. Restore the file; or push the run again from the machine that has it: "
            f"surestep mirror push RUN --to {store.address}"
        )


def _fetch(store: Store, owner: Owner, folder: Path, print_line: Callable[[str], None]) -> None:
    """Become the writer of a mirror, and copy the run that it has."""
    owner.wait(print_line)
    found = read_owner(store)
    if found is None:
        _check_no_other_files(store, listed := store.list())
        owner.has_saved = bool(listed)  # it is not known
    else:
        owner.adopt(found)
    owner.acquire(print_line)
    listed = store.list()
    _check_has_config(store, listed)
    if "config.json" not in listed:
        return
    check_config(store)
    folder.mkdir(parents=True, exist_ok=True)
    lock = RunLock(folder)
    try:
        fetch_run(store, listed, folder, print_line)
        owner.check()
    finally:
        lock.release()


def explain(address: str, error: Exception) -> RunError | None:
    """Return the error for a store that rejects this process; None if it may answer later."""
    text, kind = _one_line(error), type(error).__name__
    if "Credential" in kind or "Credential" in text:
        return RunError(
            f"There are no credentials for {address}: {text}. Set them as the driver expects, such "
            "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in ~/.aws/credentials."
        )
    if isinstance(error, PermissionError):
        hint = "Check the credentials, and that they may list, read, write and delete there."
        if error.errno is not None:  # of a disk
            hint = "Change the permissions, or choose another mirror."
        return RunError(f"{address} rejects this process: {text}. {hint}")
    if isinstance(error, FileNotFoundError):
        return RunError(
            f"There is no bucket or disk for {address}: {text}. Create it, or correct the address."
        )
    if isinstance(error, OSError) and error.errno in _NOT_PASSING:
        return RunError(
            f"{address} cannot be written: {text}. {os_error_hint(error, 'mirror', '')}"
        )
    return None


def _one_line(error: Exception) -> str:
    return first_line(error) or type(error).__name__
