"""Micro-batches as JSON and tensors, and back; values that are neither are listed as lost."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from surestep.base.errors import RunError
from surestep.engine.batch import MicroBatch
from surestep.engine.distributed.communicator import Communicator
from surestep.record.checkpoint.encoding import decode_value, encode
from surestep.record.safetensors_writer import NAMES


class BatchDump:
    """Encoded micro-batches.

    Attributes:
        record: as JSON holds it.
        tensors: by name; on the host and contiguous.
        lost: the key and type of each value that is not kept.
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
    """Return micro-batches from their record and their tensors, which anyone may have written."""
    left = dict(tensors)
    try:
        return tuple(
            MicroBatch(
                args=tuple(decode_value(micro["args"], left)),
                kwargs=dict(decode_value(micro["kwargs"], left)),
                targets=decode_value(micro["targets"], left),
                items=micro["items"],
                samples=int(micro["samples"]),
                position=int(micro["position"]),
                part_items=tuple(micro["part_items"]),
            )
            for micro in record
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"The batch of the incident cannot be read: {error!r}.") from error


def gather_batch(world: Communicator, micro_batches: tuple[MicroBatch, ...]) -> BatchDump:
    """Return all ranks' micro-batches on rank 0, and a rank's own on others; all must call it."""
    packed = BatchDump(micro_batches, prefix=f"rank-{world.rank}.")
    if world.size == 1:
        return packed
    gathered: list[Any] = [None] * world.size
    own = (packed.record, packed.lost, packed.tensors)
    with world.explain_errors():
        dist.gather_object(own, gathered if world.is_first else None, dst=0, group=world.group)
    if world.is_first:
        packed.record = [micro for record, _, _ in gathered for micro in record]
        packed.lost = [name for _, lost, _ in gathered for name in lost]
        packed.tensors = {n: t for _, _, tensors in gathered for n, t in tensors.items()}
    return packed
