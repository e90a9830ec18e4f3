"""Mistakes with checkpoints."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build
from tests.doctor.planted.planters.base import import_first, plants
from tests.doctor.planted.planters.data import drop_keyword
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, Site, View


@plants("SS801", "SR", only=("resume",))
def do_not_restore_the_optimizer(view: View) -> Iterator[Edit]:
    for site in view.calls("optimizer.load_state_dict(_a)"):
        yield site.remove


@plants("SS801", "S", only=("resume",))
def do_not_restore_the_scaler(view: View) -> Iterator[Edit]:
    for site in view.calls("scaler.load_state_dict(_a)"):
        yield site.remove


@plants("SS802", "S", only=("resume", "finetune"))
def load_in_an_unsafe_way(view: View) -> Iterator[Edit]:
    for node, _ in list(view.expressions("torch.load(*_r, **_k)")):
        assert isinstance(node, ast.Call)
        yield lambda node=node: drop_keyword(node, "map_location")
        yield lambda node=node: set_keyword(node, "weights_only", ast.Constant(False))


def set_keyword(call: ast.Call, name: str, value: ast.expr) -> None:
    drop_keyword(call, name)
    call.keywords.append(ast.keyword(name, value))


@plants("SS803", "S", skip=("ddp",))
def save_the_whole_model(view: View) -> Iterator[Edit]:
    yield from view.rewrite("torch.save(_m.state_dict(), _p)", "torch.save(_m, _p)")


@plants("SS804", "S", only=("ddp",))
def save_on_every_rank(view: View) -> Iterator[Edit]:
    for site in view.statements():
        if isinstance(site.node, ast.If) and "get_rank() == 0" in ast.unparse(site.node.test):

            def edit(site: Site = site) -> None:
                assert isinstance(site.node, ast.If)
                index = site.index
                site.block[index : index + 1] = site.node.body

            yield edit


@plants("SS805", "SR", only=("resume",))
def repeat_or_skip_an_epoch(view: View) -> Iterator[Edit]:
    yield from view.rewrite("checkpoint['epoch'] + 1", "checkpoint['epoch']")
    for tree in view.trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "epoch":
                        yield lambda value=value: become(value, build("epoch + 1", {}))


@plants("SS806", "SR", only=("ddp",))
def save_the_wrapper(view: View) -> Iterator[Edit]:
    yield from view.rewrite("ddp_model.module.state_dict()", "ddp_model.state_dict()")


@plants("SS807", "S", only=("resume",))
def overwrite_the_checkpoint(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for change in list(view.rewrite("torch.save(state, _p)", "torch.save(state, path)")):
            change()
        for site in list(view.calls("os.replace(*_r)")):
            site.remove()

    yield edit


@plants("SS808", "S", only=("resume", "finetune"))
def load_into_a_copy(view: View) -> Iterator[Edit]:
    for site in view.calls("model.load_state_dict(_a)"):

        def edit(site: Site = site) -> None:
            become(site.call, build("copy.deepcopy(model).load_state_dict(_a)", site.bound))
            if "import copy" not in view.source:
                import_first(view, "import copy")

        if "best" not in site.text("_a"):
            yield edit
