"""Read the log that W&B's service writes of an offline run: LevelDB's log format."""

import struct
from collections.abc import Iterator
from pathlib import Path

_HEADER, _BLOCK = 7, 32768
_FULL_OR_LAST = (1, 4)


def read_last_row(folder: Path) -> int | None:
    """Return the number of the newest row in a folder of an offline run; -1 if it has none.

    Returns:
        None if there is no such folder: it was synced and deleted, or the run was not offline.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    if not folder.name.startswith("offline-run-") or not folder.is_dir():
        return None
    last = -1
    for path in folder.glob("run-*.wandb"):
        for chunk in read_chunks(path.read_bytes()):
            try:
                record = wandb_internal_pb2.Record.FromString(chunk)
            except DecodeError:  # the rest is damaged, which is as if it had not been written
                break
            if record.HasField("history"):
                last = max(last, record.history.step.num)
    return last


def read_chunks(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of a log.

    The service may still be writing: a record whose end is not in the file yet is not one.
    """
    place, record = _HEADER, b""
    while place + _HEADER <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER:
            place += _BLOCK - place % _BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        if kind == 0 or place + _HEADER + size > len(data):
            return
        record += data[place + _HEADER : place + _HEADER + size]
        place += _HEADER + size
        if kind in _FULL_OR_LAST:
            yield record
            record = b""
