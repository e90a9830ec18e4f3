"""Export the weights of a checkpoint to one file that plain PyTorch loads.

Names, shapes and dtypes are the model's own, so `model.load_state_dict` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from surestep.base.errors import CheckpointError
from surestep.base.files import replace_file
from surestep.engine.distributed.shards import TensorMeta
from surestep.record.checkpoint.manifest import BUFFERS
from surestep.record.checkpoint.reader import CheckpointReader
from surestep.record.io import check_output, dumps, explain_write_errors
from surestep.record.safetensors_writer import stream_tensors

if TYPE_CHECKING:  # a wrong path is rejected without torch
    from torch import Tensor

ENDINGS = (".safetensors", ".pt")


@dataclass(frozen=True)
class ExportResult:
    """The result of an export.

    Attributes:
        path: the file.
        checkpoint: the folder it was read from.
        step: of the checkpoint.
        average: whether it has the averaged weights.
        tensors: how many names it has.
        tied: how many of these are other names of the same tensor.
        bytes: the size of the file.
        lacks: names of the frozen base, which the checkpoint leaves out.
        left_out: names of buffers with persistent=False that training changed; no state dict holds
            them.
    """

    path: Path
    checkpoint: Path
    step: int
    average: bool
    tensors: int
    tied: int
    bytes: int
    lacks: tuple[str, ...]
    left_out: tuple[str, ...] = ()


class _Location(NamedTuple):
    """The tensor of a name in a checkpoint, and what it becomes in the file."""

    kind: str
    name: str
    described: TensorMeta


def export(
    found: CheckpointReader,
    path: Path,
    *,
    run: str | None = None,
    average: bool = False,
    overwrite: bool = False,
) -> ExportResult:
    """Write the weights and buffers of a verified checkpoint to one file.

    Args:
        found: the checkpoint.
        path: ends in .safetensors or .pt (a state dict, for torch.load with weights_only).
        run: the name of the run, for the header.
        average: export the averaged weights.
        overwrite: replace an existing file.

    Raises:
        ConfigError: the ending is wrong, the folder is missing, or the file exists.
        CheckpointError: the checkpoint is corrupted or has no average, or the disk is full.
    """
    check_output(path, ENDINGS, overwrite=overwrite)
    record, locations = found.record, _locate(found, average=average)
    if path.suffix == ".safetensors" and record["extra"]:
        raise CheckpointError(
            f"{found.path} has state that is not a dense tensor, which safetensors cannot hold: "
            f"{', '.join(record['extra'])}. Export it to a file that ends in .pt."
        )
    with (
        explain_write_errors(path, "file", "", kind=CheckpointError),
        replace_file(path) as temporary,
        _open_tensors(found, locations) as read,
    ):
        if path.suffix == ".safetensors":
            described = {name: tensor.described for name, tensor in locations.items()}
            with temporary.open("xb") as file:
                stream_tensors(file, described, read, _header(found, run, average=average))
        else:
            _write_state_dict(temporary, found, locations, read)
        size = temporary.stat().st_size
        check_output(path, ENDINGS, overwrite=overwrite)
    return ExportResult(
        path=path,
        checkpoint=found.path,
        step=found.manifest.step,
        average=average,
        tensors=len(locations),
        tied=len(record["aliases"]),
        bytes=size,
        lacks=tuple(sorted(record["base"])),
        left_out=tuple(sorted(found.manifest.tensors.get(BUFFERS, ()))),
    )


def _locate(found: CheckpointReader, *, average: bool) -> dict[str, _Location]:
    """Return where the tensors of a model are, tied ones under each of their names."""
    locations = {
        name: _Location("model", name, tensor.described)
        for name, tensor in found.entries("model").items()
    }
    if average:
        if "average" not in found.manifest.tensors:
            raise CheckpointError(
                f"{found.path} has no averaged weights. Train with average.kind='ema' or 'swa', "
                "or leave out --average (average=True in Python)."
            )
        optimizers = found.record["optimizers"].values()
        groups = [group for optimizer in optimizers for group in optimizer["groups"]]
        trained = {name for group in groups for name in group["names"]}
        for name, tensor in found.entries("average").items():
            if name in trained and name not in locations:
                raise CheckpointError(
                    f"{found.path} has an average of {name}, and the model's state_dict has no "
                    "such name: a hook changes it. Load the average and save the result: "
                    "run.load_model(model, 'average'); torch.save(model.state_dict(), path)."
                )
            if name not in locations:  # a buffer that no state dict holds
                continue
            # The average of half-precision weights is in fp32; export the dtype of the model.
            dtype = locations[name].described.dtype
            locations[name] = _Location("average", name, TensorMeta(tensor.shape, dtype))
    return found.with_aliases(locations)


@contextmanager
def _open_tensors(
    found: CheckpointReader, locations: Mapping[str, _Location]
) -> Iterator[Callable[[str], Tensor]]:
    """Yield a function that reads the tensor of a name."""
    with ExitStack() as stack:
        kinds = {tensor.kind for tensor in locations.values()}
        reads = {kind: stack.enter_context(found.open_tensors(kind)) for kind in kinds}

        def read(name: str) -> Tensor:
            kind, saved_name, described = locations[name]
            return reads[kind](saved_name, None).to(described.dtype)

        yield read


def _header(found: CheckpointReader, run: str | None, *, average: bool) -> dict[str, str]:
    """Return the text in the header of the file; transformers needs the format."""
    saved, tied, base = found.saved, found.record["aliases"], sorted(found.record["base"])
    return {
        "format": "pt",
        "step": str(saved.step),
        "weights": "average" if average else "weights",
        "metrics": dumps(saved.metrics.with_tables()),
        "measured": saved.evaluated,
        **({"tied": dumps(tied)} if tied else {}),
        **({"lacks": dumps(base)} if base else {}),
        **({"run": run} if run is not None else {}),
    }


def _write_state_dict(
    path: Path,
    found: CheckpointReader,
    locations: Mapping[str, _Location],
    read: Callable[[str], Tensor],
) -> None:
    """Write a state dict for `torch.load(path, weights_only=True)`; tied names share a tensor."""
    import torch

    from surestep.record.checkpoint.encoding import decode

    # clone(): torch writes all the memory that a tensor is a view of, which is the whole file.
    once = {tensor: read(name).clone() for name, tensor in locations.items()}
    tensors = {name: once[tensor] for name, tensor in locations.items()}
    extra = decode(found.path, found.record["extra"], tensors)
    with path.open("xb") as file:
        try:
            torch.save({**tensors, **extra}, file)
        except RuntimeError as error:  # torch hides the OSError of the file
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None
