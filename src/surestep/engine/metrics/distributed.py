"""Metrics that are objects, over several ranks: each state exactly that of all samples.

torchmetrics puts its states together by gathering them. Its own way of gathering hangs or mixes up
types where a rank had no sample, so it is given another one.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.distributed.communicator import Communicator

_BY_SUMS = "Give a function of (outputs, targets) that returns (sum, count)"


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Check that each metric that is an object can be put together from several ranks.

    Raises:
        TaskError: one cannot.
    """
    for name, metric in metrics.items():
        if hasattr(metric, "compute") and not has_torchmetrics(metric):
            raise TaskError(
                f"metrics[{name!r}] is a {type(metric).__name__}, and what several ranks have seen "
                f"cannot be put together. {_BY_SUMS}, surestep.whole_set(fn) of a function over "
                "all predictions, or a torchmetrics.Metric."
            )
        for part in _parts(metric):
            for state, how in part._reductions.items():
                if _is_lossy(part, state, how):
                    raise TaskError(
                        f"metrics[{name!r}]: the state {state!r} of {type(part).__name__} is a "
                        "mean or a list that torchmetrics cannot put together exactly from "
                        f"several ranks. {_BY_SUMS}."
                    )


def has_torchmetrics(metric: Any) -> bool:
    """Return whether a metric is an object of torchmetrics, or has some."""
    return any(True for _ in _parts(metric))


def _is_lossy(part: Any, state: str, how: Callable[..., Any] | None) -> bool:
    """Return whether a state of several ranks is not that of all samples."""
    if type(part)._sync_dist is not _metric_class(part)._sync_dist:
        return False  # it has a way of its own
    if how is None:
        return isinstance(part._defaults[state], list)
    return getattr(how, "__name__", "") == "dim_zero_mean"


def _metric_class(part: Any) -> Any:
    return next(kind for kind in type(part).__mro__ if kind.__name__ == "Metric")


def _parts(metric: Any) -> Iterator[Any]:
    """Yield the torchmetrics objects in a metric."""
    for module in metric.modules() if isinstance(metric, nn.Module) else ():
        if hasattr(module, "_reductions") and hasattr(module, "dist_sync_fn"):
            yield module


@contextmanager
def sync_metrics(metric: Any, world: Communicator) -> Iterator[None]:
    """Let what a metric computes be of all ranks."""
    if world.size == 1:
        yield
        return
    for part in _parts(metric):
        part.dist_sync_fn = partial(all_gather_uneven, world=world)
    with warnings.catch_warnings():
        # A rank without samples has what the others have seen.
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
        yield


def all_gather_uneven(own: Tensor, group: Any = None, *, world: Communicator) -> list[Tensor]:
    """Return a tensor of each rank, in the order of ranks; one without elements is as the others.

    Args:
        own: of this rank; the first dimension may differ from that of others.
        group: ignored, since all ranks take part.
        world: the ranks.
    """
    text = json.dumps([str(own.dtype).removeprefix("torch."), list(own.shape)])
    seen = [json.loads(other) for other in world.all_gather_text(text)]
    sizes = [torch.Size(shape).numel() for _, shape in seen]
    if not any(sizes):
        return [own] * world.size
    name, like = next(layout for layout, size in zip(seen, sizes, strict=True) if size)
    flat = torch.zeros(max(sizes), dtype=getattr(torch, name), device=own.device)
    flat[: own.numel()] = own.reshape(-1)
    gathered = [torch.empty_like(flat) for _ in seen]
    dist.all_gather(gathered, flat)
    return [
        tensor[:size].view(shape if size else [0, *like[1:]])
        for tensor, size, (_, shape) in zip(gathered, sizes, seen, strict=True)
    ]
