"""A batch as JSON and tensors, and back; what is neither is not kept, and is named."""

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from surestep.base.errors import RunError
from surestep.engine.batch import MicroBatch
from surestep.engine.distributed.communicator import Communicator
from surestep.record.safetensors_writer import NAMES

_PLAIN = (bool, int, str, type(None))


class BatchDump:
    """Micro-batches as they can be written.

    Args:
        micro_batches: what is packed.
        prefix: of the names of tensors, where others are put beside them.

    Attributes:
        record: their form, as JSON can hold it.
        tensors: by name; on the host and contiguous.
        lost: what is not kept, each with its place.
    """

    def __init__(self, micro_batches: tuple[MicroBatch, ...], *, prefix: str = "") -> None:
        self.tensors: dict[str, Tensor] = {}
        self.lost: list[str] = []
        self.record = [
            {
                "args": self._pack(micro.args, f"{prefix}{index}.args"),
                "kwargs": self._pack(dict(micro.kwargs), f"{prefix}{index}.kwargs"),
                "targets": self._pack(micro.targets, f"{prefix}{index}.targets"),
                "items": micro.items,
                "samples": micro.samples,
                "position": micro.position,
                "part_items": list(micro.part_items),
            }
            for index, micro in enumerate(micro_batches)
        ]

    def _pack(self, value: Any, name: str) -> Any:
        if (
            isinstance(value, Tensor)
            and str(value.dtype) in NAMES
            and value.layout == torch.strided
        ):
            self.tensors[name] = value.detach().cpu().contiguous()
            return {"tensor": name}
        if type(value) in (tuple, list):
            parts = [self._pack(each, f"{name}.{number}") for number, each in enumerate(value)]
            return {type(value).__name__: parts}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._pack(each, f"{name}.{key}") for key, each in value.items()}}
        if type(value) is float:  # JSON has no word for those that are not finite, but text
            return {"float": value}
        if type(value) in _PLAIN:
            return {"value": value}
        self.lost.append(f"{name}: {type(value).__name__}")
        return {"lost": type(value).__name__}


def decode_batch(record: Any, tensors: Mapping[str, Tensor]) -> tuple[MicroBatch, ...]:
    """Return micro-batches from their form and their tensors.

    Raises:
        RunError: the form is not one that was written.
    """
    try:
        return tuple(
            MicroBatch(
                args=tuple(_unpack(each["args"], tensors)),
                kwargs=dict(_unpack(each["kwargs"], tensors)),
                targets=_unpack(each["targets"], tensors),
                items=each["items"],
                samples=int(each["samples"]),
                position=int(each["position"]),
                part_items=tuple(each["part_items"]),
            )
            for each in record
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"The batch of the incident cannot be read: {error!r}.") from error


def _unpack(form: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in form:
        return tensors[form["tensor"]]
    if "tuple" in form:
        return tuple(_unpack(each, tensors) for each in form["tuple"])
    if "list" in form:
        return [_unpack(each, tensors) for each in form["list"]]
    if "dict" in form:
        return {key: _unpack(each, tensors) for key, each in form["dict"].items()}
    return float(form["float"]) if "float" in form else form["value"]


def gather_batch(world: Communicator, micro_batches: tuple[MicroBatch, ...]) -> BatchDump:
    """Pack the micro-batches of all ranks in their order, on the first; on others their own.

    All ranks call this together. What travels is text and plain tensors.
    """
    packed = BatchDump(micro_batches, prefix=f"rank-{world.rank}.")
    if world.size == 1:
        return packed
    # Tensors may share their memory, which safetensors refuses.
    data = save({name: each.clone() for name, each in packed.tensors.items()})
    told = {"record": packed.record, "lost": packed.lost, "bytes": len(data)}
    forms = [json.loads(each) for each in world.all_gather_text(json.dumps(told))]
    longest = max(form["bytes"] for form in forms)
    own = torch.zeros(longest, dtype=torch.uint8)
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    each = [torch.empty_like(own) for _ in forms] if world.is_first else None
    with world.explain_errors():
        dist.gather(own, each, dst=0, group=world.group)
    if each is None:
        return packed
    packed.record = [micro for form in forms for micro in form["record"]]
    packed.lost = [lost for form in forms for lost in form["lost"]]
    packed.tensors = {}
    for form, sent in zip(forms, each, strict=True):
        packed.tensors |= load(sent[: form["bytes"]].numpy().tobytes())
    return packed
