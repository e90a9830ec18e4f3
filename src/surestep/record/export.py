"""The weights of a checkpoint as one file that plain PyTorch loads: safetensors or a state dict.

Names, shapes and types are the model's own, so that `model.load_state_dict` takes what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from surestep.base.errors import CheckpointError, ConfigError, suggest_names
from surestep.base.paths import require_local_path
from surestep.engine.distributed.shards import TensorMeta
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.io import dumps, fsync, os_error_hint
from surestep.record.safetensors_writer import stream_tensors
from surestep.record.temp_files import temp_name

if TYPE_CHECKING:  # what cannot be written there is refused without torch
    from torch import Tensor

_ENDINGS = (".safetensors", ".pt")
_OTHER = "file", ""  # than the one that cannot be written


@dataclass(frozen=True)
class ExportResult:
    """What was written.

    Attributes:
        path: the file.
        checkpoint: what it was read from.
        step: of the checkpoint.
        average: it holds the averaged weights.
        tensors: how many names it has.
        tied: how many of these are other names of the same tensor.
        bytes: the size of the file.
        lacks: names of the frozen base, which the checkpoint leaves out.
    """

    path: Path
    checkpoint: Path
    step: int
    average: bool
    tensors: int
    tied: int
    bytes: int
    lacks: tuple[str, ...]


def export(
    found: CheckpointReader,
    path: Path,
    *,
    run: str | None = None,
    average: bool = False,
    overwrite: bool = False,
) -> ExportResult:
    """Write the weights and buffers of a checkpoint as one file, whole or not at all.

    Args:
        found: the checkpoint, which was verified.
        path: ends in .safetensors or .pt (a state dict, for torch.load with weights_only).
        run: what the header calls the run, if there is one.
        average: the averaged weights in the place of the others.
        overwrite: replace a file that is there.

    Raises:
        ConfigError: another ending, no such folder, or a file is there already.
        CheckpointError: damaged, has no average, or the disk is full.
    """
    check_out(path, overwrite=overwrite)
    saved, lies = found.saved, _sources(found, average=average)
    tied = {name: str(first) for name, first in found.record["aliases"].items()}
    lacks = tuple(sorted(found.record.get("base") or {}))
    about = {
        **_about(saved, average=average, tied=tied, lacks=lacks),
        **({"run": run} if run is not None else {}),
    }
    try:
        with _replacing(path, overwrite=overwrite) as temporary:
            if path.suffix == ".safetensors":
                _check_plain(found)
                with _reading(found, lies) as read:
                    described = {name: each.described for name, each in lies.items()}
                    stream_tensors(temporary, described, read, about)
            else:
                with _reading(found, lies) as read:
                    weights = _each_once(lies, read)
                from surestep.record.checkpoint.encoding import put_together

                tensors, extra = put_together(weights, found.record["extra"])
                _write_state_dict(temporary, {**tensors, **extra})
            size = temporary.stat().st_size
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written: {error.strerror or error}. "
            f"{os_error_hint(error, _OTHER)}"
        ) from error
    return ExportResult(path, found.path, saved.step, average, len(lies), len(tied), size, lacks)


def check_out(path: Path, *, overwrite: bool) -> None:
    """Check that weights can be written to this file.

    Raises:
        ConfigError: another ending, no such folder, or a file is there already.
        RunError: it is an address.
    """
    require_local_path(path)
    if path.suffix not in _ENDINGS:
        raise ConfigError(
            f"{str(path)!r}: the ending says the format, and {path.suffix or 'none'!r} is not one. "
            f"{suggest_names(path.suffix, _ENDINGS)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {path.parent} to write {path.name} into. Make it.")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Say a file in it, such as {path / 'model.pt'}.")
    if not overwrite and (path.exists() or path.is_symlink()):
        raise ConfigError(
            f"{path} is there already. Say --overwrite (overwrite=True in Python) to replace it, "
            "or choose another file."
        )


class TensorLocation(NamedTuple):
    """Where the tensor of a name lies in a checkpoint, and what it is in the file."""

    kind: str
    name: str
    described: TensorMeta


def _sources(found: CheckpointReader, *, average: bool) -> dict[str, TensorLocation]:
    """Return where the tensors of a model lie, those that are tied under each of their names."""
    lies = {
        name: TensorLocation("model", name, each.described)
        for name, each in found.entries("model").items()
    }
    if average:
        if "average" not in found.manifest.tensors:
            raise CheckpointError(
                f"{found.path} has no averaged weights. Train with average.kind='ema' or 'swa', "
                "or leave out --average (average=True in Python)."
            )
        for name, each in found.entries("average").items():
            # The average of half-precision weights is kept in fp32; the model holds them as before.
            dtype = lies[name].described.dtype if name in lies else each.described.dtype
            lies[name] = TensorLocation("average", name, TensorMeta(each.shape, dtype))
    try:
        return lies | {name: lies[of] for name, of in found.record["aliases"].items()}
    except KeyError as error:
        raise CheckpointError(
            f"{found.path} cannot be read: it lacks the tensor {error}."
        ) from error


@contextmanager
def _reading(
    found: CheckpointReader, lies: Mapping[str, TensorLocation]
) -> Iterator[Callable[[str], Tensor]]:
    """Yield what reads the tensor of a name."""
    with ExitStack() as stack:
        kinds = {each.kind for each in lies.values()}
        reads = {kind: stack.enter_context(found.open_tensors(kind)) for kind in sorted(kinds)}

        def read(name: str) -> Tensor:
            kind, of, described = lies[name]
            return reads[kind](of, None).to(described.dtype)

        yield read


def _each_once(
    lies: Mapping[str, TensorLocation], read: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Read all tensors; those that are tied are one."""
    once: dict[TensorLocation, Tensor] = {}
    for name, each in lies.items():
        if each not in once:
            once[each] = read(name)
    return {name: once[each] for name, each in lies.items()}


def _check_plain(found: CheckpointReader) -> None:
    if found.record["extra"]:
        names = ", ".join(found.record["extra"])
        raise CheckpointError(
            f"{found.path} has state that is no dense tensor, which safetensors cannot hold: "
            f"{names}. Export it to a file that ends in .pt."
        )


def _about(
    saved: CheckpointInfo, *, average: bool, tied: Mapping[str, str], lacks: tuple[str, ...]
) -> dict[str, str]:
    """Return what the header of the file tells, as text; transformers asks for the format."""
    return {
        "format": "pt",
        "step": str(saved.step),
        "weights": "average" if average else "weights",
        "metrics": dumps(saved.metrics),
        "measured": saved.evaluated,
        **({"tied": dumps(tied)} if tied else {}),
        **({"lacks": dumps(lacks)} if lacks else {}),
    }


def _write_state_dict(path: Path, state_dict: dict[str, Any]) -> None:
    """Write a state dict for `torch.load(path, weights_only=True)`; tied names share a tensor.

    Each tensor is copied, since torch writes all of the memory that one looks into: the whole file.
    """
    import torch

    tensors = (each for each in state_dict.values() if isinstance(each, torch.Tensor))
    copies = {id(each): each.clone() for each in tensors}
    state_dict = {name: copies.get(id(each), each) for name, each in state_dict.items()}
    with path.open("xb") as file:
        writing: Any = _CheckedFile(file)  # torch asks for write and flush alone
        try:
            torch.save(state_dict, writing)
        except RuntimeError as error:  # torch's writer tells only that something failed
            raise (writing.error or error) from error


class _CheckedFile:
    """A file that remembers what the disk said."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _replacing(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield where to write what then takes this name, synced, in one move."""
    temporary = temp_name(path, "tmp")
    try:
        temporary.unlink(missing_ok=True)
        yield temporary
        fsync(temporary)
        check_out(path, overwrite=overwrite)
        temporary.replace(path)
        fsync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
