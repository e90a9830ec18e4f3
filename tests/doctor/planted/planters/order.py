"""Mistakes in the order of a step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build, match
from tests.doctor.planted.planters.base import (
    backwards,
    clips,
    delete_all,
    in_same_block,
    optimizer_steps,
    plants,
)
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, Site, View


def zeroings(view: View) -> list[list[Site]]:
    """Return the calls of zero_grad, together those of one receiver in one function."""
    found: dict[tuple[int, str], list[Site]] = {}
    for site in view.calls("_o.zero_grad(*_r, **_k)"):
        found.setdefault((id(site.function), site.text("_o")), []).append(site)
    return list(found.values())


@plants("SS101", "SR")
def delete_zero_grad(view: View) -> Iterator[Edit]:
    for sites in zeroings(view):
        yield lambda sites=sites: delete_all(sites)


@plants("SS101", "SR", skip=("language_model", "lbfgs", "streaming"))
def zero_before_the_loop(view: View) -> Iterator[Edit]:
    for sites in zeroings(view):
        loops = sites[-1].loops
        if not loops or len(sites) > 1:
            continue

        def edit(site: Site = sites[0], loop: ast.AST = loops[0]) -> None:
            outer = next(s for s in view.statements() if s.node is loop)
            site.remove()
            outer.block.insert(outer.index, site.node)

        yield edit


@plants("SS102", "SR")
def zero_before_step(view: View) -> Iterator[Edit]:
    for sites in zeroings(view):
        for step in optimizer_steps(view):
            if in_same_block(sites[-1], step) and len(optimizer_steps(view)) == 1:
                yield lambda zero=sites[-1], step=step: zero.move_before(step)


# The GradScaler raises an error if an optimizer has no gradient.
@plants("SS102", "SR", skip=("amp_loop",))
def zero_after_backward(view: View) -> Iterator[Edit]:
    for sites in zeroings(view):
        for backward in backwards(view):
            if in_same_block(sites[-1], backward) and len(backwards(view)) == 1:
                yield lambda zero=sites[-1], backward=backward: zero.move_after(backward)


@plants("SS103", "SR")
def clip_before_backward(view: View) -> Iterator[Edit]:
    for clip in clips(view):
        for backward in backwards(view):
            if in_same_block(clip, backward):
                yield lambda clip=clip, backward=backward: clip.move_before(backward)


@plants("SS104", "SR")
def clip_after_step(view: View) -> Iterator[Edit]:
    for clip in clips(view):
        for step in optimizer_steps(view):
            if in_same_block(clip, step):
                yield lambda clip=clip, step=step: clip.move_after(step)


@plants("SS105", "SR", only=("amp_loop",))
def never_unscale(view: View) -> Iterator[Edit]:
    for site in view.calls("_s.unscale_(_o)"):
        yield site.remove


@plants("SS105", "SR", only=("amp_loop",))
def unscale_after_clip(view: View) -> Iterator[Edit]:
    for site in view.calls("_s.unscale_(_o)"):
        for clip in clips(view):
            yield lambda site=site, clip=clip: site.move_after(clip)


# Without a backward pass, the scaler of amp_loop raises an error.
@plants("SS106", "SR", skip=("lbfgs", "amp_loop"))
def delete_backward(view: View) -> Iterator[Edit]:
    found = backwards(view)
    for site in found:
        if sum(other.function is site.function for other in found) == 1:
            yield site.remove


@plants("SS106", "SR", skip=("lbfgs",))
def delete_step(view: View) -> Iterator[Edit]:
    for site in optimizer_steps(view):
        yield site.remove


@plants("SS107", "SR", only=("accumulation", "ddp", "hf_like_trainer", "language_model"))
def do_not_divide(view: View) -> Iterator[Edit]:
    for node, bound in list(view.expressions("_a / _n")):
        if "accum" in ast.unparse(bound["_n"]).lower() and "len" not in ast.unparse(node):
            yield lambda node=node, bound=bound: become(node, bound["_a"])


@plants("SS108", "SR", only=("accumulation", "ddp", "hf_like_trainer"))
def skip_the_last_window(view: View) -> Iterator[Edit]:
    for tree in view.trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.BoolOp) and "%" in ast.unparse(node.values[0]):
                yield lambda node=node: become(node, node.values[0])


@plants("SS109", "SR", skip=("lightning_module", "wgan_gp"))
def retain_graph(view: View) -> Iterator[Edit]:
    yield from view.rewrite("_l.backward()", "_l.backward(retain_graph=True)")


# The gradients of this script are unscaled and finite, so no run shows it.
@plants("SS110", "S", only=("amp_loop",))
def step_beside_the_scaler(view: View) -> Iterator[Edit]:
    yield from view.rewrite("scaler.step(_o)", "_o.step()")


@plants("SS110", "S", only=("resume",))
def step_beside_an_optional_scaler(view: View) -> Iterator[Edit]:
    yield from view.rewrite("scaler.step(_o)", "_o.step()")


# torch raises an error in a run of this and the next one.
@plants("SS110", "S", only=("amp_loop",), runs=False)
def never_update_the_scaler(view: View) -> Iterator[Edit]:
    for site in view.calls("scaler.update()"):
        yield site.remove


@plants("SS110", "S", only=("amp_loop",), runs=False)
def backward_of_the_unscaled_loss(view: View) -> Iterator[Edit]:
    yield from view.rewrite("scaler.scale(_l).backward()", "_l.backward()")


@plants("SS111", "SR", only=("amp_loop",))
def train_in_float16_without_a_scaler(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for pattern, text in (
            ("scaler.scale(_l).backward()", "_l.backward()"),
            ("scaler.step(_o)", "_o.step()"),
        ):
            for change in list(view.rewrite(pattern, text)):
                change()
        for pattern in ("scaler.unscale_(_o)", "scaler.update()"):
            delete_all(list(view.calls(pattern)))

    yield edit


DETACHED = (
    "torch.tensor(_l.item(), requires_grad=True)",
    "_l.detach().requires_grad_()",
    "torch.autograd.Variable(_l.data, requires_grad=True)",
    "torch.tensor([_l], requires_grad=True)",
)


@plants("SS112", "SR", skip=("lightning_module", "wgan_gp", "amp_loop"))
def make_a_new_tensor_of_the_loss(view: View) -> Iterator[Edit]:
    for index, backward in enumerate(backwards(view)):
        loss = backward.bound["_l"]
        scaled = match("_s.scale(_l)", loss)
        name = scaled["_l"] if scaled else loss
        if isinstance(name, ast.Name):
            text = f"{name.id} = {DETACHED[index % len(DETACHED)].replace('_l', name.id)}"
            yield lambda backward=backward, text=text: backward.insert_before(text, {})


@plants("SS112", "SR", skip=("lightning_module", "wgan_gp", "lbfgs", "vae", "gan", "amp_loop"))
def detach_the_output(view: View) -> Iterator[Edit]:
    for name, module in (("cross_entropy", "CrossEntropyLoss"), ("mse_loss", "MSELoss")):
        for site, call in view.losses(name, module):
            around = site.function or site.above[0]
            if ".backward(" not in ast.unparse(around) or in_evaluation(site):
                continue
            if isinstance(call.args[0], ast.Name):
                yield lambda call=call: detach_argument(call)


def in_evaluation(site: Site) -> bool:
    """Whether a statement runs without gradients."""
    blocks = [node for node in site.above if isinstance(node, ast.With)]
    texts = [ast.unparse(item) for node in blocks for item in node.items]
    if site.function is not None:
        texts += map(ast.unparse, site.function.decorator_list)
    return any("no_grad" in text or "inference" in text for text in texts)


def detach_argument(call: ast.Call) -> None:
    call.args[0] = build("_a.detach().requires_grad_(True)", {"_a": call.args[0]})


@plants("SS113", "S", only=("amp_loop", "resume", "segmentation"))
def backward_inside_autocast(view: View) -> Iterator[Edit]:
    for site in backwards(view):
        for other in view.statements():
            if isinstance(other.node, ast.With) and other.block is site.block:

                def edit(site: Site = site, block: ast.With = other.node) -> None:
                    site.remove()
                    block.body.append(site.node)

                if "autocast" in ast.unparse(other.node.items[0]):
                    yield edit


@plants("SS114", "SR", only=("ddp",))
def always_synchronize(view: View) -> Iterator[Edit]:
    yield from view.rewrite("_c if _t else _m.no_sync()", "_c")


@plants("SS115", "S", only=("flat_script", "early_stopping", "tabular"), runs=False)
def lbfgs_without_closure(view: View) -> Iterator[Edit]:
    for site in view.calls("_o(_p, **_k)"):
        name = site.text("_o")
        if name.startswith("torch.optim.") and "lr_scheduler" not in name:
            yield lambda site=site: become(site.call, build("torch.optim.LBFGS(_p)", site.bound))


@plants("SS115", "S", only=("lbfgs",))
def closure_that_computes_nothing(view: View) -> Iterator[Edit]:
    for site in view.calls("optimizer.step(closure)"):
        yield lambda site=site: site.replace("loss = closure()\noptimizer.step(lambda: loss)")


@plants("SS117", "R")
def clip_to_almost_nothing(view: View) -> Iterator[Edit]:
    for clip in clips(view):

        def edit(clip: Site = clip) -> None:
            assert isinstance(clip.call, ast.Call)
            if len(clip.call.args) > 1:
                clip.call.args[1] = ast.Constant(0.002)
            for keyword in clip.call.keywords:
                if keyword.arg == "max_norm":
                    keyword.value = ast.Constant(0.002)

        yield edit
