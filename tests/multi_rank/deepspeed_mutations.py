"""A DeepSpeed case for two ranks and its mutations, for `mutations.py`."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from surestep.engine.parallel.deepspeed import strategy as deepspeed
from surestep.engine.parallel.deepspeed.state import ZeroSlice, ZeroState
from surestep.engine.parallel.deepspeed.strategy import DeepSpeedStrategy
from tests.multi_rank import deepspeed_engine
from tests.multi_rank.cases import SGD, opened, task
from tests.multi_rank.checks import distance, same

Patch = pytest.MonkeyPatch
SAID: dict[str, Any] = {"optim": SGD, "micro_batch_size": 3, "max_steps": 4}
ZERO: dict[str, Any] = {"parallel": {"strategy": "deepspeed", "zero_stage": 2}}


def by_zero(folder: Path) -> dict[str, Any]:
    """Train with uneven shards, and save; return norms, live weights and saved weights."""
    with opened(folder, task(), **SAID, **(ZERO if "RANK" in os.environ else {})) as session:
        norms = [float(each.grad_norm) for each in session.steps()]
        session.save()
        live = {name: each.detach().clone() for name, each in session.model.named_parameters()}
    return {"norms": norms, "live": live, "saved": deepspeed_engine.saved_weights(folder)}


def check_zero(one: dict[str, Any], ranks: list[dict[str, Any]]) -> None:
    """Check norms and weights against one process, and saved against live weights."""
    for each in ranks:
        assert each["norms"] == pytest.approx(one["norms"], rel=1e-5)
        assert distance(one["live"], each["live"]) <= 1e-6
        assert same(each["live"], each["saved"])


def unsummed(patch: Patch, module: Any) -> None:
    """Omit the shards of the other ranks from a norm."""
    alone = {**vars(dist), "all_reduce": lambda *_, **__: None}
    patch.setattr(module, "dist", SimpleNamespace(**alone))


def from_the_start(
    self: ZeroState, name: str, own: Callable[..., ZeroSlice] = ZeroState._cut
) -> ZeroSlice:
    """Use the shard of rank 0 for each rank."""
    return own(self, name)._replace(begin=0)


def of_a_sum(self: DeepSpeedStrategy, loss_sum: Tensor, items: float) -> None:
    """Call backward on the sum, as if DeepSpeed divided by the items."""
    self.engine.backward(loss_sum, scale_wrt_gas=False)


def always_last(
    self: DeepSpeedStrategy, *, when: bool, own: Callable = DeepSpeedStrategy.sync_grads
) -> Any:
    """Treat each backward as the last of its step."""
    return own(self, when=True)


# Each with the number of the law that it breaks.
BROKEN: dict[str, tuple[int, Callable[[Patch], None]]] = {
    "each rank saves its piece as the first one": (
        2,
        lambda patch: patch.setattr(ZeroState, "_cut", from_the_start),
    ),
    "DeepSpeed goes backward from a sum": (
        1,
        lambda patch: patch.setattr(DeepSpeedStrategy, "backward", of_a_sum),
    ),
    "each backward by DeepSpeed is the last": (
        1,
        lambda patch: patch.setattr(DeepSpeedStrategy, "sync_grads", always_last),
    ),
    "DeepSpeed's norm is that of one rank's pieces": (1, partial(unsummed, module=deepspeed)),
}
