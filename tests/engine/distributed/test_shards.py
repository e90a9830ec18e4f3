"""Every element of a tensor that ranks share is written by one of them."""

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
    "cut": ((4,), (Shard(0),)),
    "cut along the second dimension": ((4,), (Shard(1),)),
    "copies": ((4,), (Replicate(),)),
    "hybrid": ((2, 2), (Replicate(), Shard(0))),
    "cut twice along one dimension": ((2, 2), (Shard(0), Shard(0))),
    "cut along both": ((2, 2), (Shard(0), Shard(1))),
}
SHAPES = [(8, 4), (5, 4), (2, 7), (1, 1), (6, 5, 3), (0, 4)]


@contextmanager
def as_rank(rank, sizes):
    """Be one rank of a mesh in which nobody else is."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        yield init_device_mesh("cpu", sizes)
    finally:
        dist.destroy_process_group()


def laid_out(whole, mesh, placements):
    """Lay a tensor out with torch's own arithmetic."""
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
def test_what_ranks_write_makes_up_the_tensor_and_covers_it_once(layout, shape):
    sizes, placements = LAYOUTS[layout]
    whole = torch.arange(float(torch.Size(shape).numel())).view(shape)
    found, times, written = torch.full_like(whole, -1), torch.zeros(shape), 0
    for rank in range(4):
        with as_rank(rank, sizes) as mesh:
            piece = local_shard(laid_out(whole, mesh, placements), is_first=rank == 0)
        assert piece.full_shape == shape
        ends = zip(piece.offset, piece.local.shape, strict=True)
        box = tuple(slice(begin, begin + size) for begin, size in ends)
        assert torch.equal(whole[box], piece.local)  # where it says, on those that do not write too
        if piece.writes:
            found[box], written = piece.local, written + 1
            times[box] += 1
    assert torch.equal(found, whole)
    assert bool((times == 1).all())
    assert written >= 1


def test_the_first_rank_writes_what_all_of_them_hold():
    tensor = torch.ones(3, 2)
    assert local_shard(tensor, is_first=True) == ((3, 2), (0, 0), tensor, True)
    assert not local_shard(nn.Parameter(tensor), is_first=False).writes
    assert local_shard(torch.tensor(2.0), is_first=True)[:2] == ((), ())
    assert not is_sharded(tensor)


def test_a_box_is_put_back_where_it_was():
    whole = torch.randn(5, 3)
    with as_rank(2, (4,)) as mesh:
        like = laid_out(torch.zeros(5, 3), mesh, (Shard(0),))
        offset, shape, _ = shard_extent(like)
        assert (offset, shape) == ((4, 0), (1, 3))
        placed = distribute_like(like, whole[4:5])
        assert placed.placements == like.placements
        assert placed.shape == like.shape
        assert torch.equal(placed.to_local(), whole[4:5])


def test_what_is_no_box_is_refused():
    with as_rank(1, (4,)) as mesh:
        tensor = DTensor.from_local(torch.ones(2), mesh, (Partial(),), run_check=False)
        with pytest.raises(ParallelError, match=r"P\(sum\).*not boxes.*Shard each dimension once"):
            local_shard(tensor, is_first=False)


class OnTheHost:
    """A part that was put on the host, of a tensor whose ranks compute on GPUs."""

    device, device_mesh = "cpu", SimpleNamespace(device_type="cuda")

    def to(self, device):
        self.device = device
        return self

    def full_tensor(self):
        return f"gathered on {self.device}"


def test_parts_on_the_host_are_gathered_by_the_devices(monkeypatch):
    """NCCL sends nothing that lies on the host."""
    monkeypatch.setattr(pieces, "is_sharded", lambda _: True)
    assert full_tensor(OnTheHost()) == "gathered on cuda"


def test_a_tensor_that_nobody_shares_is_the_whole():
    alone = torch.ones(2)
    assert full_tensor(alone) is alone
