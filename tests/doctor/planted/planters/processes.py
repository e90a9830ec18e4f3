"""Mistakes with several processes, and with mixed precision's old names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build
from tests.doctor.planted.planters.base import delete_all, plants
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, View


@plants("SS409", "SR", only=("sharded",), hidden=("sharded",))  # it runs in one process
def report_one_part(view: View) -> Iterator[Edit]:
    for site in view.calls("torch.distributed.all_reduce(totals)"):
        yield site.remove


@plants("SS901", "SR", only=("ddp",))
def bypass_the_wrapper(view: View) -> Iterator[Edit]:
    yield from view.rewrite("ddp_model(inputs)", "ddp_model.module(inputs)")
    yield from view.rewrite("ddp_model(inputs)", "model(inputs)")


@plants("SS902", "S", only=("ddp",))
def first_gpu_for_every_rank(view: View) -> Iterator[Edit]:
    for text in ("torch.device('cuda')", "torch.device('cuda:0')", "torch.device('cuda', 0)"):

        def edit(text: str = text) -> None:
            for change in list(view.rewrite("torch.device('cuda', local_rank)", text)):
                change()
            delete_all(list(view.calls("torch.cuda.set_device(local_rank)")))

        yield edit


@plants("SS906", "SR", only=("ddp",), hidden=("ddp",))  # it runs in one process
def shuffle_alike_on_all_ranks(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for node, _ in list(view.expressions("torch.utils.data.DataLoader(*_r, **_k)")):
            text = "torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True)"
            become(node, build(text, {}))
        delete_all(list(view.calls("sampler.set_epoch(epoch)")))
        delete_all(list(view.calls("torch.utils.data.distributed.DistributedSampler(*_r, **_k)")))

    yield edit


@plants("SS907", "SR", only=("sharded",))
def shard_the_model_as_one_unit(view: View) -> Iterator[Edit]:
    for site in view.statements():
        if isinstance(site.node, ast.For) and "fully_shard" in ast.unparse(site.node):
            yield site.remove


@plants("SS908", "S", only=("amp_loop",))
def old_names(view: View) -> Iterator[Edit]:
    yield from view.rewrite("torch.amp.GradScaler(device, **_k)", "torch.cuda.amp.GradScaler(**_k)")
    yield from view.rewrite("torch.amp.autocast(**_k)", "torch.cuda.amp.autocast()")
