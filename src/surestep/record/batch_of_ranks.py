"""A batch that each rank has a share of, packed on the first one."""

import json

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from surestep.engine.data.batch import MicroBatch
from surestep.engine.parallel.world import World
from surestep.record.batches import Packed


def packed_on_first(world: World, micro_batches: tuple[MicroBatch, ...]) -> Packed:
    """Pack the micro-batches of all ranks in their order, on the first; on others their own.

    All ranks call this together. What travels is text and plain tensors.
    """
    packed = Packed(micro_batches, prefix=f"rank-{world.rank}.")
    if world.size == 1:
        return packed
    # Tensors may share their memory, which safetensors refuses.
    data = save({name: each.clone() for name, each in packed.tensors.items()})
    told = {"record": packed.record, "lost": packed.lost, "bytes": len(data)}
    forms = [json.loads(each) for each in world.texts(json.dumps(told))]
    longest = max(form["bytes"] for form in forms)
    own = torch.zeros(longest, dtype=torch.uint8)
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    each = [torch.empty_like(own) for _ in forms] if world.is_first else None
    with world.explaining():
        dist.gather(own, each, dst=0, group=world.group)
    if each is None:
        return packed
    packed.record = [micro for form in forms for micro in form["record"]]
    packed.lost = [lost for form in forms for lost in form["lost"]]
    packed.tensors = {}
    for form, sent in zip(forms, each, strict=True):
        packed.tensors |= load(sent[: form["bytes"]].numpy().tobytes())
    return packed
