"""Ways to damage a file of a run; a reader rejects the damaged file or never opens it."""

import json
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GONE = object()  # instead of a value: remove the key
WITHIN_S = 60  # far more than a reader takes on a busy machine


class Ran:
    """A pickle that creates a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / "unpickled"),)


def _written(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _link(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**42)  # sparse: it uses no disk space


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "empty": _written(b""),
    "number": _written(b"3\n"),
    "text": _written(b'"x"\n'),
    "null": _written(b"null\n"),
    "list": _written(b"[1, [2]]\n"),
    "object": _written(b'{"x": 1}\n'),
    "deep": _written(b"[" * 100_000 + b"]" * 100_000 + b"\n"),
    "deep objects": _written(b'{"event":' * 300 + b"1" + b"}" * 300 + b"\n"),
    "NaN": _written(b'{"event": NaN, "status": NaN, "config": NaN}\n'),
    "twice": _written(b'{"event": "a", "event": "b"}\n'),
    "no UTF-8": _written(b'{"event": "\xff\xfe"}\n'),
    "half a character": _written(b'{"event": "\\ud800"}\n'),
    "long number": _written(b'{"event": ' + b"9" * 5000 + b"}\n"),
    "zeros": _written(bytes(1000)),
    "pipe": lambda path: os.mkfifo(path),
    "folder": lambda path: path.mkdir(),
    "link": _link,
    "link to itself": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "huge": _huge,
    "pickle": lambda path: path.write_bytes(pickle.dumps(Ran(path.parent))),
}


def spoil(path: Path, damage: str) -> None:
    """Replace a file by a damaged one."""
    if damage not in ("link", "huge"):
        path.unlink()
    DAMAGES[damage](path)


def change(path: Path, *where: Any, value: Any) -> None:
    """Change a value in a JSON file, or in the last event of a type in an event file."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = len(lines) - 1
    if path.suffix == ".jsonl":
        at = max(i for i, line in enumerate(lines) if json.loads(line)["event"] == where[0])
        where = where[1:]
    tree = owner = json.loads(lines[at])
    for key in where[:-1]:
        owner = owner[key]
    if value is GONE:
        del owner[where[-1]]
    else:
        owner[where[-1]] = value
    lines[at] = json.dumps(tree)
    path.write_text("\n".join(lines) + "\n")


@contextmanager
def in_time(seconds: int = WITHIN_S) -> Iterator[None]:
    """Raise TimeoutError when a block takes too long, such as waiting for a pipe."""

    def time_out(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, time_out)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
