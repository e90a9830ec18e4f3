"""`surestep mirror COMMAND`: copy a run to its mirror or from it, outside of training."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import tyro
from tqdm.auto import tqdm

from surestep.base.errors import ConfigError, RunError
from surestep.base.paths import cache_folder, require_local_path
from surestep.base.text import print_escaped
from surestep.base.typed_targets import remember_target, was_typed
from surestep.cli.main import run_subcommand
from surestep.cli.mirrored import use_mirror
from surestep.cli.parse import command
from surestep.mirror.fetch import fetch_run, finish_fetching
from surestep.mirror.link import make_link, read_link
from surestep.mirror.open import become_writer, open_store
from surestep.mirror.outline import require_run
from surestep.mirror.owner import Owner, release_owner
from surestep.mirror.push import Pusher
from surestep.record.lock import RunLock, is_locked
from surestep.record.run import Run

_COMMANDS = {
    "push": "push RUN: copy what the mirror of a run lacks",
    "fetch": "fetch ADDRESS [FOLDER]: copy a run and all its checkpoints from a mirror",
    "release": "release ADDRESS: take a mirror away from the process that writes it",
}


def _print(text: str) -> None:
    print_escaped(text, file=sys.stderr)


@contextmanager
def _show_sent(pusher: Pusher) -> Iterator[None]:
    """Show a bar of what is sent in the body, on a terminal."""
    text = f"Sending to {pusher.store.address}"
    with tqdm(desc=text, unit="B", unit_scale=True, dynamic_ncols=True, disable=None) as bar:

        def show() -> None:
            bar.n, bar.total = pusher.count_sent()
            bar.refresh()

        pusher.store.progress.on_change = show
        yield


@command("mirror push")
def push(folder: Annotated[str, tyro.conf.arg(metavar="RUN")], /, *, to: str | None = None) -> int:
    """Copy what the mirror of a run lacks, for example after an outage at its end.

    Args:
        folder: Run folder.
        to: Address of the mirror; the default is the one that the run has.
    """
    path = Run(require_local_path(folder)).path
    if is_locked(path):
        raise RunError(f"{path} is running, and copies itself. Wait until it ends.")
    link = read_link(path)
    address = to or (None if link is None else link.address)
    if address is None:
        raise ConfigError(f"{path} has no mirror. Pass its address: --to s3://bucket/run")
    if to is None and link is not None and not was_typed(link.id, address):
        raise ConfigError(
            f"{path} names the mirror {address}, which was not typed on this machine, and the "
            "folder may come from anyone. If the run may be copied there, type: surestep mirror "
            f"push {shlex.quote(folder)} --to {shlex.quote(address)}"
        )
    with use_mirror(address) as store:
        open_store(store.address, path)
        lock = RunLock(path)
        try:
            new = make_link(path, store.address).id
            owner = Owner(store, new, has_started=link is not None)
            become_writer(store, owner, path, _print)
            try:
                finish_fetching(path)
                link = make_link(path, store.address, owner.run_id)
                link.write(path)
                remember_target(link.id, link.address)
                owner.start()
                pusher = Pusher(
                    path,
                    store,
                    link,
                    owner.check,
                    on_complete=owner.record_checkpoint,
                    every_byte=True,
                )
                with _show_sent(pusher):
                    pusher.push(is_last=True)
            finally:
                owner.release()
        finally:
            lock.release()
    count = f"{pusher.copied} file{'' if pusher.copied == 1 else 's'}"
    print_escaped(f"{store.address} has everything; {count} copied.")
    return 0


@command("mirror fetch")
def fetch(
    address: Annotated[str, tyro.conf.arg(metavar="ADDRESS")],
    folder: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None,
    /,
) -> int:
    """Copy a run and all its checkpoints from a mirror; every byte is verified.

    Args:
        address: Address of the mirror, such as s3://bucket/run.
        folder: Folder of the run here; the default is the one that `train --run ADDRESS` uses.
    """
    with use_mirror(address) as store:
        path = cache_folder(store.address) if folder is None else require_local_path(folder)
        listed = require_run(store)
        path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(path)
        try:
            fetch_run(store, listed, path, _print, every=True)
        finally:
            lock.release()
    print_escaped(str(path))
    return 0


@command("mirror release")
def release(address: Annotated[str, tyro.conf.arg(metavar="ADDRESS")], /) -> int:
    """Let another process write a mirror, if the one that writes it cannot be stopped.

    That process then continues without the mirror. A process that was killed need not be released:
    the next one takes over within two minutes.

    Args:
        address: Address of the mirror.
    """
    with use_mirror(address) as store:
        had = release_owner(store)
    print_escaped(f"{address} is released." if had else f"No process writes {address}.")
    return 0


_RUN = {"push": push, "fetch": fetch, "release": release}


def run(words: list[str]) -> int:
    """Run one of the commands."""
    return run_subcommand("mirror", _COMMANDS, _RUN, words)
