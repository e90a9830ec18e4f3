"""Mutate a good checkpoint repeatedly and read it: it is loaded, or a CheckpointError is raised.

    python -m tests.torture.fuzz_checkpoints --seconds 600 --seed 1

Bytes are mutated, and JSON as JSON. Mostly the hashes are recomputed, so that the code behind them
is reached. Each input depends only on the seed and its number: --only 12 repeats it.
"""

import argparse
import copy
import hashlib
import json
import math
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from surestep.base.errors import CheckpointError
from surestep.engine.state.state import State
from surestep.record.checkpoint.discovery import find_newest_valid, scan_checkpoints
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, add_self_hash
from tests import tiny
from tests.record.checkpoint.forge import state_of
from tests.record.checkpoint.on_disk import load_checkpoint, load_model, save_checkpoint

Files = dict[str, bytes]
DEPTHS = (1_000, 10_000, 100_000)  # of JSON; Python's reader fails at about 1,000
MODEL = state_of(steps=0).model
WITHIN_S = 60  # for one input, on a busy machine; most take 10 ms
MEMORY = 2**31  # bytes above the memory at the start
BYTES = (0, 1, 9, 10, 32, 34, 44, 45, 48, 57, 58, 91, 92, 93, 123, 125, 127, 128, 237, 255)


def _deep(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


VALUES = tuple(
    json.dumps(value)
    for value in (
        *(None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**62, 2**63, 2**64, 10**400, -(2**70)),
        *(
            0.5,
            -0.0,
            math.nan,
            math.inf,
            1e300,
            1e308,
            1e-320,
            "nan",
            "inf",
            "-inf",
            "",
            "x",
            "F32",
            "F64",
            "BOOL",
            "step",
        ),
        *("../state.json", "/etc/passwd", "a\nb", "a\0b", "\ud800", "é" * 300, "x" * 10**5),
        *([], {}, [[]], [0], [1, 2], [-1], [2**62, 4], {"a": 1}, {"$tensor": "nope"}),
        *({"$tensor": ["x"]}, {"$tensor": {}}, [None] * 1000, _deep(90), _deep(500)),
        *("model.safetensors", "state.json", "manifest.json", [1] * 100, "0.weight"),
    )
)


class AnyState:
    """A callback that accepts any state, so that it never causes a crash."""

    def __init__(self) -> None:
        self.state: Any = {"count": 3, "seen": [1, 2], "scale": torch.ones(2)}

    def state_dict(self) -> Any:
        """Return the state."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Set the state."""
        self.state = state


def _state(seed: int = 0) -> State:
    """Return a state with the state of a callback."""
    state = state_of(seed=seed)
    state.callback_states["Remembering"] = AnyState()
    return state


def nest_deeply(tree: Any, draw: random.Random) -> bytes:
    """Return a tree as JSON with a value nested deeper than Python reads."""
    path = draw.choice(_places(tree))
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = "@deep"
    depth = draw.choice(DEPTHS)
    return _dumps(tree).replace(b'"@deep"', b"[" * depth + b"0" + b"]" * depth)


def _any(draw: random.Random) -> Any:
    return json.loads(draw.choice(VALUES))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, each in inner:
        found.append((*path, key))
        if isinstance(each, (dict, list)):
            found += _places(each, (*path, key))
    return found


def mutate_json(tree: Any, draw: random.Random) -> Any:
    """Replace, delete, rename, copy or swap some values of a tree."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        places = _places(tree) if isinstance(tree, (dict, list)) else []
        if not places:
            return _any(draw)
        owners = []
        for path in draw.choices(places, k=2):
            owner = tree
            for key in path[:-1]:
                owner = owner[key]
            owners.append((owner, path[-1]))
        (owner, key), (other, name) = owners
        match draw.randrange(8):
            case 0 | 1 | 2:
                owner[key] = _any(draw)
            case 3:
                del owner[key]
            case 4 if isinstance(owner, dict):
                owner[str(_any(draw))[:300]] = owner.pop(key)
            case 5 if isinstance(owner, dict):
                owner[str(_any(draw))[:300]] = _any(draw)
            case 6:
                owner[key] = json.loads(json.dumps(other[name]))
            case _:
                owner[key] = (
                    draw.choice((1, -1, 2)) if isinstance(owner[key], int) else [owner[key]]
                )
    return tree


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flip, delete, insert, overwrite or repeat some bytes."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        at, size = draw.randrange(len(changed) + 1), draw.choice((1, 1, 2, 4, 8, 64))
        match draw.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at : at + size]
            case 2:
                changed[at:at] = bytes(draw.choices(BYTES, k=size))
            case 3:
                changed[at : at + size] = bytes(draw.choices(BYTES, k=size))
            case 4:
                changed[at:at] = changed[at : at + size]
            case _ if draw.random() < 0.2:
                del changed[at:]
    return bytes(changed)


def _dumps(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def mutate_tensors(data: bytes, draw: random.Random) -> bytes:
    """Mutate the header of a file of tensors, or its length."""
    size = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    text = _dumps(mutate_json(header, draw))
    length = len(text)
    if draw.random() < 0.2:
        length = draw.choice((0, 1, length - 1, length + 1, 2**31, 2**40, 2**63, 2**64 - 1))
    return length.to_bytes(8, "little") + text + mutate_bytes(rest, draw)


def mutated(good: Files, draw: random.Random) -> Files:
    """Return the files of a checkpoint, some of them mutated."""
    files = dict(good)
    manifest: Any = json.loads(good[MANIFEST])
    names = [name for name in files if name != MANIFEST]
    raw = b""
    for _ in range(draw.choice((1, 1, 1, 2))):
        match draw.randrange(9):
            case 8:
                files[RECORD] = nest_deeply(json.loads(good[RECORD]), draw)
            case 0 | 1 | 2:
                files[RECORD] = _dumps(mutate_json(json.loads(good[RECORD]), draw))
            case 3 | 4:
                manifest = mutate_json(manifest, draw)
            case 5:
                name = draw.choice([each for each in names if each != RECORD])
                files[name] = mutate_tensors(good[name], draw)
            case 6:
                name = draw.choice(names)
                files[name] = mutate_bytes(good[name], draw)
            case _:
                raw = mutate_bytes(good[MANIFEST], draw)
    files[MANIFEST] = raw or _sealed(manifest, files, draw)
    return files


def _sealed(manifest: Any, files: Files, draw: random.Random) -> bytes:
    entries = manifest.get("files") if isinstance(manifest, dict) else None
    if isinstance(entries, dict) and draw.random() < 0.95:
        for name, entry in entries.items():
            if name in files and isinstance(entry, dict):
                data = files[name]
                entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    if isinstance(manifest, dict):
        manifest = {"sha256": "0" * 64, **manifest}
        manifest["sha256"] = "0" * 64
    return add_self_hash(json.dumps(manifest)).encode("utf-8", "surrogatepass")


def good_files(folder: Path) -> Files:
    """Write a good checkpoint, and return its files."""
    path = save_checkpoint(folder, _state())
    return {each.name: each.read_bytes() for each in sorted(path.iterdir())}


def check(folder: Path, files: Files, state: State) -> str:
    """Read a checkpoint in every way; return whether the state was rejected or loaded.

    Raises:
        Exception: a reader raised anything but a CheckpointError, or left a partial state.
    """
    path = folder / "step-00000002"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    for read in (scan_checkpoints, find_newest_valid):
        with suppress(CheckpointError):
            read(folder)
    came = "loaded"
    before, step = tiny.weights(state.model), state.progress
    moments = copy.deepcopy(state.optimizer.state_dict())
    try:
        load_checkpoint(path, state)
    except CheckpointError as error:
        came = "refused" if len(str(error)) < 2000 else "refused without end"
    if came != "loaded":
        assert came == "refused", "a message without end"
        assert torch.equal(tiny.weights(state.model), before), "half a model"
        assert state.progress == step, "half a state"
        assert repr(state.optimizer.state_dict()) == repr(moments), "half an optimizer"
    for average in (False, True):
        with suppress(CheckpointError):
            load_model(path, MODEL, average=average)
    return came


def fuzz(
    seed: int, first: int, seconds: float, folder: Path
) -> tuple[int, Counter[str], list[str]]:
    """Try inputs from number `first` on, for so many processor seconds.

    Returns their number, outcomes and crashes.
    """
    good, came, crashes = good_files(folder / "good"), Counter[str](), []
    assert check(folder, good, _state(seed=7)) == "loaded"
    state = _state(seed=7)
    end, number = time.process_time() + seconds, first
    while time.process_time() < end:
        files = mutated(good, random.Random(f"{seed} {number}"))
        signal.alarm(WITHIN_S)
        try:
            result = check(folder, files, state)
            came[result] += 1
            if result == "loaded":
                state = _state(seed=7)
        except Exception as error:
            came["crashed"] += 1
            frames = traceback.extract_tb(error.__traceback__)
            at = next((f for f in reversed(frames) if "surestep" in f.filename), frames[-1])
            state = _state(seed=7)
            crashes.append(f"{number}: {at.filename}:{at.lineno}: {error!r}"[:300])
        finally:
            signal.alarm(0)
        number += 1
    return number - first, came, crashes


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {WITHIN_S} s")


def main() -> int:
    """Fuzz with the options of the command line; print numbers and crashes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    said = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        if said.only is not None:
            good = good_files(Path(folder) / "good")
            files = mutated(good, random.Random(f"{said.seed} {said.only}"))
            print(check(Path(folder), files, _state(seed=7)))
            return 0
        tried, came, crashes = fuzz(said.seed, 0, said.seconds, Path(folder))
    kinds = {crash.split(": ", 1)[1][:90]: crash for crash in crashes}
    print(f"{tried} inputs of seed {said.seed}: {dict(came)}")
    print("\n".join(kinds.values()))
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
