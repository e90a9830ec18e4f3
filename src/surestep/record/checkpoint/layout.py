"""Where the tensors of a checkpoint lie: the same from one to the next, unless the State changes.

What depends on nothing else is made once: training waits for the time that a save takes of Python.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from surestep.record.checkpoint.manifest import Slice, Stored, tensors_text
from surestep.record.checkpoint.tensors import Block, memory_for, name_of

Named = Mapping[str, Mapping[str, Tensor]]  # by kind ("model", "optimizer", ...) and name
_NOTHING: Mapping[str, Block] = MappingProxyType({})


class Layout:
    """Buffers on the host that tensors are copied into, and the files that are made of them.

    Args:
        tensors: what they are for, by kind and name.
        old: files of the layout before, whose memory is taken where it fits.

    Attributes:
        buffers: by kind and name; contiguous.
        blocks: what each file holds, by its name.
        known: what lay beside the tensors of one that was laid out like this, and could be opened.

    Raises:
        CheckpointError: safetensors has no name for a tensor's type.
    """

    def __init__(self, tensors: Named, old: Mapping[str, Block] = _NOTHING) -> None:
        self.blocks: Mapping[str, Block] = {
            _file(kind): _block(named, old.get(_file(kind))) for kind, named in tensors.items()
        }
        self.buffers: Named = {kind: self.of(kind).tensors for kind in tensors}
        self.known: str | None = None
        self._like = list(_like(tensors))

    @cached_property
    def text(self) -> str:
        """What a manifest says of the tensors, as JSON."""
        return tensors_text(
            {
                kind: {name: _whole(name, each, _file(kind)) for name, each in named.items()}
                for kind, named in self.buffers.items()
            }
        )

    def of(self, kind: str) -> Block:
        """Return what the file of a kind holds."""
        return self.blocks[_file(kind)]

    def fits(self, tensors: Named) -> bool:
        """Say whether these tensors have the names, shapes and types of the buffers."""
        return self._like == list(_like(tensors))

    def fill(self, tensors: Named) -> None:
        """Copy tensors that fit into the buffers; waits for their devices."""
        taken, buffers = _all(tensors), _all(self.buffers)
        with torch.no_grad():
            if taken:
                torch._foreach_copy_(buffers, taken, non_blocking=True)
        for device in {each.device for each in taken}:  # not the current one alone
            if device.type != "cpu":
                torch.accelerator.synchronize(device)


def _block(tensors: Mapping[str, Tensor], old: Block | None) -> Block:
    if old is not None and list(_like({"": tensors})) == list(_like({"": old.tensors})):
        return old
    return memory_for(tensors)


def _like(tensors: Named) -> Iterator[tuple[str, str, torch.Size, torch.dtype]]:
    for kind, named in tensors.items():
        for name, each in named.items():
            yield kind, name, each.shape, each.dtype


def _all(tensors: Named) -> list[Tensor]:
    return [each for named in tensors.values() for each in named.values()]


def _file(kind: str) -> str:
    return f"{kind}.safetensors"


def _whole(name: str, tensor: Tensor, file: str) -> Stored:
    """Return a tensor that lies in one piece."""
    shape = tuple(tensor.shape)
    piece = Slice(file, tuple(0 for _ in shape), shape)
    return Stored(name_of(name, tensor.dtype), shape, (piece,))
