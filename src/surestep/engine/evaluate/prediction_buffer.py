"""What was said of each sample, batch after batch, put together."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch
from surestep.engine.metrics.spool import Spool


def flatten_outputs(value: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors of nested outputs by name: "output", or "output_<key>" of several."""
    if isinstance(value, Tensor):
        return {name: value}
    pairs: Any = ()
    fields = getattr(value, "_fields", None)
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, tuple) and fields is not None:
        pairs = zip(fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        pairs = enumerate(value)
    found: dict[str, Tensor] = {}
    for key, each in pairs:
        found |= flatten_outputs(each, f"{name}_{key}")
    return found


class PredictionBuffer:
    """Tensors by name, each with a row for each sample; on the host, in bounded memory.

    Outputs have to have a row for each sample. Targets that have not are left out, and told of.

    Args:
        folder: of the temporary files of what does not fit into memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.n_samples = 0
        self._spool = Spool(folder=folder)
        self._left_out: dict[str, str] = {}

    def add(self, micro: MicroBatch, said: Mapping[str, Any]) -> None:
        """Take in what was said of a micro-batch, and its targets.

        Raises:
            TaskError: outputs without a row for each sample.
        """
        tensors: dict[str, Tensor] = {}
        rows = micro.rows
        for name, value in said.items():
            tensors |= flatten_outputs(value, name)
        outputs = {name: each for name, each in tensors.items() if each.dim()}
        for name in tensors.keys() - outputs.keys():
            self._left_out[name] = "one number for a whole batch"
        if not outputs:
            raise TaskError(
                f"The model returned {_kind(said)}, which holds no tensor with a row for each "
                "sample. Return a tensor, or a dict or tuple of tensors."
            )
        for name, tensor in outputs.items():
            if reason := self._odd(name, tensor, rows):
                raise TaskError(
                    f"The model's {name} has {reason}. Predictions have a row for each sample, all "
                    "of one shape: pad all samples to one length (collate_fn), or leave it out of "
                    "what the model returns."
                )
            self._spool.add(name, tensor)
        self._add_targets(micro)
        step = 0 if micro.is_ready else 1  # all rows of a ready-made batch are of one element
        self._spool.add("index", micro.position + step * torch.arange(rows))
        self.n_samples += rows

    def _add_targets(self, micro: MicroBatch) -> None:
        for name, tensor in flatten_outputs(micro.targets, "target").items():
            if reason := self._odd(name, tensor, micro.rows):
                self._left_out.setdefault(name, reason)
            elif name not in self._left_out:
                self._spool.add(name, tensor)

    def _odd(self, name: str, tensor: Tensor, samples: int) -> str:
        """Say why a tensor cannot stand below those before it; nothing where it can."""
        shape = tuple(tensor.shape)
        if not shape or shape[0] != samples:
            return f"shape {shape} for a batch of {samples} samples"
        return self._spool.mismatch(name, tensor)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return them as arrays, the index first and the targets last.

        What does not fit into memory is mapped to its temporary file.

        Raises:
            TaskError: outputs that only some batches have.
        """
        found = {"index": self._spool.array("index")}
        names = [name for name in self._spool.names if name not in (*self._left_out, "index")]
        for name in sorted(names, key=lambda name: name.startswith("target")):
            if self._spool.rows(name) != self.n_samples:
                raise TaskError(
                    f"{name} is there for {self._spool.rows(name)} of {self.n_samples} samples. "
                    "Return the same names for every batch."
                )
            found[name] = self._spool.array(name)
        return found

    def warnings(self) -> Iterator[str]:
        """Say what was left out."""
        for name, reason in self._left_out.items():
            yield f"{name} is left out: {reason}."


def _kind(said: Mapping[str, Any]) -> str:
    value = said.get("output")
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
