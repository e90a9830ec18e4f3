"""Read a run in a mirror without copying its tensors."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from surestep.base.errors import CheckpointError, RunError
from surestep.base.paths import split_address
from surestep.base.temp_folders import make_temp_folder
from surestep.base.text import escape_control_chars
from surestep.mirror.records import CHECKPOINTS, EVENTS
from surestep.mirror.store import Store
from surestep.record.checkpoint.discovery import (
    InspectionResult,
    examine,
    has_checkpoint_name,
)
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, read_manifest
from surestep.record.checkpoint.reader import check_readable, check_record, read_record
from surestep.record.io import MOST_SHOWN, parse_json
from surestep.record.schemas import CONFIG, NewerFormatError, validate

_HEADER_SIZE = 8  # bytes at the start of a safetensors file, with the size of its header
_LARGEST_HEADER = 10**8 + _HEADER_SIZE  # safetensors rejects a larger one
_RUN_FILES = ("config.json", "plan.json", "status.json")
_RECORDS = re.compile(
    r"events\.jsonl|(signature|predictions)\.json|incidents/step-\d+/incident\.json"
)


def require_run(store: Store) -> dict[str, int]:
    """Return the size of each file of a run in a mirror, by name.

    Raises:
        RunError: there is no run at the address, or its config.json is damaged.
    """
    listed = store.list()
    if "config.json" not in listed:
        address, which = split_address(store.address)
        hint = "Check the address."
        if which is not None:
            hint = f"This command takes a full run, without @{which}: {address}"
        raise RunError(f"There is no run at {store.address}. {hint}")
    check_config(store)
    return listed


def check_config(store: Store) -> None:
    """Check the config.json of a run in a mirror.

    Raises:
        RunError: it is damaged, or of a newer surestep.
    """
    try:
        validate(CONFIG, parse_json(store.read("config.json")))
    except NewerFormatError as error:
        raise RunError(f"{store.address}/config.json {error}") from error
    except ValueError as error:
        text = escape_control_chars(str(error))[:MOST_SHOWN]
        raise RunError(
            f"{store.address}/config.json is damaged: {text}. Put a copy of it there; or push the "
            f"run again from the machine that has it: surestep mirror push RUN --to {store.address}"
        ) from error


@contextmanager
def open_outline(store: Store, listed: Mapping[str, int]) -> Iterator[Path]:
    """Yield a folder like that of the run, with the manifests but without tensors.

    The other files of a checkpoint have their size and no content, so they take no space where a
    file system has sparse files. What reads no tensor can read this folder like that of a run. A
    checkpoint without a manifest is left out: it is being copied, or deleted.
    """
    with make_temp_folder() as folder:
        for name in (name for name in _RUN_FILES if name in listed):
            (folder / name).write_bytes(store.read(name))
        (folder / CHECKPOINTS).mkdir()
        for name in complete_checkpoints(listed):
            with suppress(FileNotFoundError):  # it is deleted now
                write_outline(store, listed, folder, name)
        yield folder


def write_records(store: Store, folder: Path) -> None:
    """Copy what a run recorded, its events and incidents, into its outline; without tensors."""
    for name in filter(_RECORDS.fullmatch, store.list()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # it is deleted now
            path.write_bytes(store.read(name))


def write_outline(store: Store, listed: Mapping[str, int], folder: Path, name: str) -> None:
    """Write the outline of a checkpoint into `folder/checkpoints`."""
    below = f"{CHECKPOINTS}/{name}"
    path = folder / below
    path.mkdir()
    try:
        for file in (MANIFEST, RECORD):
            if f"{below}/{file}" in listed:
                (path / file).write_bytes(store.read(f"{below}/{file}"))
    except FileNotFoundError:
        rmtree(path)
        raise
    for file, size in files_below(listed, below).items():
        if file not in (MANIFEST, RECORD):
            with (path / file).open("xb") as written:
                written.truncate(size)


def files_below(listed: Mapping[str, int], below: str) -> dict[str, int]:
    """Return the size of each file directly in a folder of a mirror, by its own name."""
    start = f"{below}/"
    names = {name.removeprefix(start): name for name in listed if name.startswith(start)}
    return {short: listed[name] for short, name in names.items() if "/" not in short}


def complete_checkpoints(listed: Mapping[str, int]) -> list[str]:
    """Return the names of the checkpoints in a mirror that have a manifest, oldest first."""
    parts = [name.split("/") for name in listed]
    found = [p[1] for p in parts if len(p) == 3 and (p[0], p[2]) == (CHECKPOINTS, MANIFEST)]
    return sorted((name for name in found if has_checkpoint_name(name)), key=lambda n: (len(n), n))


def examine_mirror(
    store: Store, paths: Iterable[Path], *, every_byte: bool
) -> Iterator[InspectionResult]:
    """Inspect checkpoints of a mirror.

    Args:
        store: of the mirror.
        paths: of their outlines.
        every_byte: read every byte, from the mirror.

    Yields:
        What is wrong with each.
    """
    for index, path in enumerate(paths):
        if every_byte and not index:
            with suppress(FileNotFoundError):
                (path.parents[1] / EVENTS).write_bytes(store.read(EVENTS))
        if (result := examine(path, every_byte=False)) is None:
            continue
        if every_byte and result.good:
            problems = tuple(_find_damage(store, path)) or tuple(_compare_headers(store, path))
            result = replace(result, problems=problems, verified=not problems)
        elif not result.good:
            result = replace(result, verified=False)
        yield replace(result, written=None)


def _find_damage(store: Store, path: Path) -> Iterator[str]:
    """Read every file of a checkpoint in a mirror; yield what is wrong with each damaged one."""
    for name, expected in read_manifest(path).files.items():
        try:
            sha256 = store.sha256(f"{CHECKPOINTS}/{path.name}/{name}")
        except FileNotFoundError:
            yield f"{name}: it was deleted"
            continue
        if sha256 != expected.sha256:
            yield f"{name}: it has other bytes than were written"


def _compare_headers(store: Store, path: Path) -> Iterator[str]:
    """Copy the header of each file of tensors into its outline; yield what differs, if anything."""
    manifest = read_manifest(path)
    entries = [entry for named in manifest.tensors.values() for entry in named.values()]
    for name in {part.file for entry in entries for part in entry.slices}:
        header, end = b"", _HEADER_SIZE
        for chunk in store.chunks(f"{CHECKPOINTS}/{path.name}/{name}"):
            header += chunk
            end = _HEADER_SIZE + int.from_bytes(header[:_HEADER_SIZE], "little")
            end = min(end, _LARGEST_HEADER)
            if len(header) >= end:
                break
        with (path / name).open("r+b") as outline:
            outline.write(header[:end])
    try:
        check_record(path, read_record(path, manifest))
        check_readable(path, manifest)
    except CheckpointError as error:
        yield str(error).removeprefix(f"{path} is damaged: ")
