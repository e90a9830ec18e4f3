"""Compare memory and traffic of FSDP with torch's `fully_shard` in plain code."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from surestep.engine.distributed.communicator import WORDS
from surestep.trainer.session import Session
from tests.multi_rank.cases import data, net
from tests.multi_rank.traffic import traffic, traffic_of_a_step

AGREED = [1, 4, 2 + len(WORDS)]  # the loss, a square of each of 4 gradients, the host's values


def whole_weights(session: Session) -> dict[str, Tensor]:
    state = session.model.state_dict().items()
    return {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in state}


def shows(shard: str) -> Callable[[Session], dict[str, Any]]:
    """Return a function that reports what a session holds and sends, and what plain code sends."""

    def show(session: Session) -> dict[str, Any]:
        loop = session.loop
        batch = loop.loader.move(next(loop.loader.batches(0)))
        loop.step(batch)  # drops the state of an evaluation
        parts = [each.to_local() for each in session.model.parameters()]
        return {
            "held": sum(each.numel() for each in parts),
            "traffic": traffic_of_a_step(session),
            "plain": plain_traffic(shard, micro_batches=len(batch.micro_batches)),
            "keeps": keeps(session.model),
        }

    return show


def keeps(model: nn.Module) -> bool:
    """Return whether a block's parameters are unsharded between its forward and backward."""
    model(data()[0][:2])
    whole = not isinstance(model.get_parameter("0.weight"), DTensor)
    model.reset_iter_state()
    return whole


@cache
def plain_traffic(shard: str, *, micro_batches: int) -> dict[str, list[int]]:
    """Count the traffic of a second step of the same model with fully_shard in plain code."""
    ranks = torch.distributed.get_world_size()
    shape = (ranks // 2, 2) if shard == "hybrid" else (ranks,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "cut")[-len(shape) :])
    model, (x, y) = net(), data()
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh, reshard_after_forward=False if shard == "grad_op" else None)

    def step() -> None:
        for left in reversed(range(micro_batches)):
            model.set_requires_gradient_sync(not left)
            if shard == "grad_op":
                model.set_reshard_after_backward(not left)
            nn.functional.cross_entropy(model(x[:4]), y[:4]).backward()

    step()
    return traffic(step)


def proves(shard: str) -> Callable[[Mapping[str, Any], int], None]:
    """Return a check that a rank holds its shard, and sends what plain code does."""

    def prove(shown: Mapping[str, Any], ranks: int) -> None:
        whole = sum(each.numel() for each in net().parameters())
        parts = 2 if shard == "hybrid" else ranks
        # 16 rows are split unevenly.
        assert 0 < shown["held"] <= whole / parts + 2 * 16
        assert shown["keeps"] is (shard == "grad_op")
        sent, plain = shown["traffic"], shown["plain"]
        assert sent["all_gather"] == plain["all_gather"]
        assert sent["all_reduce"] == sorted([*plain["all_reduce"], *AGREED])
        assert sent.keys() == plain.keys()

    return prove
