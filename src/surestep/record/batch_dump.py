"""Micro-batches as JSON and tensors, and back; values that are neither are listed as lost."""

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
from surestep.record.checkpoint.encoding import decode_value, encode
from surestep.record.safetensors_writer import NAMES


class BatchDump:
    """Encoded micro-batches.

    Args:
        micro_batches: what is encoded.
        prefix: of the names of tensors.

    Attributes:
        record: as JSON holds it.
        tensors: by name; on the host and contiguous.
        lost: the place and type of each value that is not kept.
    """

    def __init__(self, micro_batches: tuple[MicroBatch, ...], *, prefix: str = "") -> None:
        self.lost: list[str] = []
        tensors: dict[str, Tensor] = {}
        self.record = [
            {
                **{
                    name: encode(f"{prefix}{index}.{name}", value, tensors, self.lost)
                    for name, value in (
                        ("args", micro.args),
                        ("kwargs", dict(micro.kwargs)),
                        ("targets", micro.targets),
                    )
                },
                "items": micro.items,
                "samples": micro.samples,
                "position": micro.position,
                "part_items": list(micro.part_items),
            }
            for index, micro in enumerate(micro_batches)
        ]
        self.lost += [f"{n}: {t.dtype}" for n, t in tensors.items() if str(t.dtype) not in NAMES]
        self.tensors = {
            name: tensor.detach().cpu().contiguous()
            for name, tensor in tensors.items()
            if str(tensor.dtype) in NAMES
        }


def decode_batch(record: Any, tensors: Mapping[str, Tensor]) -> tuple[MicroBatch, ...]:
    """Return micro-batches from their record and their tensors.

    Raises:
        RunError: the record is not one that was written.
    """
    left = dict(tensors)
    try:
        return tuple(
            MicroBatch(
                args=tuple(decode_value(each["args"], left)),
                kwargs=dict(decode_value(each["kwargs"], left)),
                targets=decode_value(each["targets"], left),
                items=each["items"],
                samples=int(each["samples"]),
                position=int(each["position"]),
                part_items=tuple(each["part_items"]),
            )
            for each in record
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"The batch of the incident cannot be read: {error!r}.") from error


def gather_batch(world: Communicator, micro_batches: tuple[MicroBatch, ...]) -> BatchDump:
    """Return all ranks' micro-batches on rank 0, and a rank's own on others; all must call it."""
    packed = BatchDump(micro_batches, prefix=f"rank-{world.rank}.")
    if world.size == 1:
        return packed
    # clone(): safetensors rejects tensors that share memory.
    data = save({name: each.clone() for name, each in packed.tensors.items()})
    described = {"record": packed.record, "lost": packed.lost, "bytes": len(data)}
    forms = [json.loads(each) for each in world.all_gather_text(json.dumps(described))]
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
