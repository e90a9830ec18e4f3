"""Mistakes that need memory or time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import match
from tests.doctor.planted.planters.base import optimizer_steps, plants, trains
from tests.doctor.planted.planters.order import in_evaluation
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, View

GPU = ("functions", "trainer_class", "several_files", "amp_loop", "language_model", "finetune")
COMPILED = ("functions", "several_files", "multilabel", "vae", "accumulation")


@plants("SS701", "SR", skip=("lbfgs", "streaming"))
def keep_the_loss(view: View) -> Iterator[Edit]:
    for site in view.statements():
        if not isinstance(site.node, (ast.AugAssign, ast.Expr, ast.Assign)) or in_evaluation(site):
            continue
        text = ast.unparse(site.node)
        is_kept = isinstance(site.node, ast.AugAssign) or ".append(" in text
        if not is_kept or not trains(site) or "val" in text or "print(" in text:
            continue
        for node in ast.walk(site.node):
            for pattern in ("_l.item()", "_l.detach()"):
                bound = match(pattern, node)
                if bound is None or not isinstance(bound["_l"], ast.Name):
                    continue
                yield lambda node=node, bound=bound: become(node, bound["_l"])
                break


@plants("SS701", "SR", only=("trainer_class",))
def return_the_loss_with_its_graph(view: View) -> Iterator[Edit]:
    for node, bound in list(view.expressions("loss.detach()")):
        yield lambda node=node: become(node, ast.Name("loss", ast.Load()))
        assert bound is not None


@plants("SS701", "SR", only=("resume", "forecasting", "workers", "accelerate_loop", "amp_loop"))
def append_every_loss(view: View) -> Iterator[Edit]:
    for step in optimizer_steps(view):
        loop = step.loops[0] if step.loops else None
        if loop is None or not isinstance(loop, ast.For):
            continue

        def edit(step: object = step, loop: ast.For = loop) -> None:
            outer = next(s for s in view.statements() if s.node is loop)
            outer.insert_before("all_losses = []")
            next(iter(optimizer_steps(view))).insert_after("all_losses.append(loss)")

        yield edit


@plants("SS702", "S", only=("amp_loop", "trainer_class", "language_model", "resume"))
def print_every_loss(view: View) -> Iterator[Edit]:
    for step in optimizer_steps(view):
        yield lambda step=step: step.insert_after("print('loss', loss.item())")
        yield lambda step=step: step.insert_after("if loss > 1000.0:\n    print('high loss')")


@plants("SS703", "S", skip=("lbfgs", "lightning_module"))
def empty_the_cache(view: View) -> Iterator[Edit]:
    for step in optimizer_steps(view)[:1]:
        yield lambda step=step: step.insert_after("torch.cuda.empty_cache()")


@plants("SS704", "S", only=("gan",))
def make_tensors_on_the_cpu(view: View) -> Iterator[Edit]:
    for name in ("randn", "full"):
        for node, bound in list(view.expressions(f"torch.{name}(*_r, device=device, **_k)")):
            if "16" in ast.unparse(node):
                continue  # once, before the loop
            text = ast.unparse(node).replace(", device=device", "")
            yield lambda node=node, text=text: become(
                node, ast.parse(f"{text}.to(device)", mode="eval").body
            )
            assert bound is not None


@plants("SS705", "S", only=COMPILED, runs=False)
def compile_in_each_epoch(view: View) -> Iterator[Edit]:
    for site in view.calls("model.train()"):
        yield lambda site=site: site.insert_before("model = torch.compile(model)")


@plants("SS706", "S", only=GPU)
def copy_without_pinned_memory(view: View) -> Iterator[Edit]:
    for node, bound in list(view.expressions("_a.to(device)")):
        if ast.unparse(bound["_a"]) in ("inputs", "data", "image", "targets", "labels"):
            yield lambda node=node, bound=bound: become(
                node,
                ast.parse(
                    f"{ast.unparse(bound['_a'])}.to(device, non_blocking=True)", mode="eval"
                ).body,
            )


@plants("SS707", "S", only=("language_model",))
def attention_by_hand(view: View) -> Iterator[Edit]:
    for site in view.calls("torch.nn.functional.scaled_dot_product_attention(q, k, v, **_k)"):
        for text in (
            "att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))\n"
            "att = att.masked_fill(torch.ones(T, T).tril() == 0, float('-inf'))\n"
            "y = torch.nn.functional.softmax(att, dim=-1) @ v",
            "scores = torch.matmul(q, k.mT) / k.size(-1) ** 0.5\n"
            "scores = scores + torch.full((T, T), float('-inf')).triu(1)\n"
            "y = torch.matmul(scores.softmax(-1), v)",
        ):
            yield lambda site=site, text=text: site.replace(text)


@plants("SS708", "S", skip=("lbfgs", "lightning_module"))
def slow_options(view: View) -> Iterator[Edit]:
    for name in ("Adam", "AdamW", "SGD"):
        for node, _ in list(view.expressions(f"torch.optim.{name}(*_r, **_k)")):
            assert isinstance(node, ast.Call)
            yield lambda node=node: node.keywords.append(
                ast.keyword("foreach", ast.Constant(False))
            )


@plants("SS710", "S", only=("char_rnn",))
def generate_under_no_grad(view: View) -> Iterator[Edit]:
    yield from view.rewrite("torch.inference_mode()", "torch.no_grad()")
