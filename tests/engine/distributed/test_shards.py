"""Every element of a sharded tensor is written by exactly one rank."""

import itertools
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from surestep.base.errors import ParallelError
from surestep.engine.distributed import shards as pieces
from surestep.engine.distributed.shards import (
    distribute_like,
    full_tensor,
    is_sharded,
    local_shard,
    shard_extent,
)

LAYOUTS = {
    "sharded": ((4,), (Shard(0),)),
    "sharded along the second dimension": ((4,), (Shard(1),)),
    "replicated": ((4,), (Replicate(),)),
    "replicated twice": ((2, 2), (Replicate(), Replicate())),
    "hybrid": ((2, 2), (Replicate(), Shard(0))),
    "sharded twice along one dimension": ((2, 2), (Shard(0), Shard(0))),
    "sharded along both dimensions": ((2, 2), (Shard(0), Shard(1))),
}
SHAPES = [(8, 4), (5, 4), (2, 7), (1, 1), (6, 5, 3), (0, 4)]


@contextmanager
def as_rank(rank, sizes):
    """Act as one rank of a device mesh whose other ranks do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        yield init_device_mesh("cpu", sizes)
    finally:
        dist.destroy_process_group()


def distributed(whole, mesh, placements):
    """Distribute a tensor with torch's own arithmetic."""
    local = whole
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            pieces = local.chunk(mesh.size(axis), placement.dim)
            at = mesh.get_coordinate()[axis]
            empty = local.narrow(placement.dim, 0, 0)
            local = pieces[at] if at < len(pieces) else empty
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


@pytest.mark.parametrize(("layout", "shape"), [*itertools.product(LAYOUTS, SHAPES)])
def test_shards_written_by_all_ranks_cover_the_tensor_exactly_once(layout, shape):
    sizes, placements = LAYOUTS[layout]
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    found, times, written = torch.full_like(whole, -1), torch.zeros(shape), 0
    for rank in range(4):
        with as_rank(rank, sizes) as mesh:
            piece = local_shard(distributed(whole, mesh, placements), is_first=rank == 0)
        assert piece.full_shape == shape
        ends = zip(piece.offset, piece.local.shape, strict=True)
        box = tuple(slice(begin, begin + size) for begin, size in ends)
        assert torch.equal(whole[box], piece.local)  # also on ranks that do not write
        if piece.writes:
            found[box], written = piece.local, written + 1
            times[box] += 1
    assert torch.equal(found, whole)
    assert bool((times == 1).all())
    assert written >= 1


def test_rank_0_writes_tensors_that_are_not_sharded():
    tensor = torch.ones(3, 2)
    assert local_shard(tensor, is_first=True) == ((3, 2), (0, 0), tensor, True)
    assert not local_shard(nn.Parameter(tensor), is_first=False).writes
    assert local_shard(torch.tensor(2.0), is_first=True)[:2] == ((), ())
    assert not is_sharded(tensor)


def test_local_shard_is_restored_with_the_original_placement():
    whole = torch.randn(5, 3)
    with as_rank(2, (4,)) as mesh:
        like = distributed(torch.zeros(5, 3), mesh, (Shard(0),))
        offset, shape, _ = shard_extent(like)
        assert (offset, shape) == ((4, 0), (1, 3))
        placed = distribute_like(like, whole[4:5])
        assert placed.placements == like.placements
        assert placed.shape == like.shape
        assert torch.equal(placed.to_local(), whole[4:5])


def test_tensor_with_a_partial_placement_is_rejected():
    with as_rank(1, (4,)) as mesh:
        tensor = DTensor.from_local(torch.ones(2), mesh, (Partial(),), run_check=False)
        with pytest.raises(ParallelError, match=r"P\(sum\).*not boxes.*Shard each dimension once"):
            local_shard(tensor, is_first=False)


class OnTheHost:
    """A shard that was offloaded to the host, of a tensor on a mesh of GPUs."""

    device, device_mesh = "cpu", SimpleNamespace(device_type="cuda")

    def to(self, device):
        self.device = device
        return self

    def full_tensor(self):
        return f"gathered on {self.device}"


def test_shards_on_the_host_are_gathered_on_the_device(monkeypatch):
    """NCCL cannot send host memory."""
    monkeypatch.setattr(pieces, "is_sharded", lambda _: True)
    assert full_tensor(OnTheHost()) == "gathered on cuda"


def test_full_tensor_of_an_unsharded_tensor_is_the_tensor_itself():
    alone = torch.ones(2)
    assert full_tensor(alone) is alone
