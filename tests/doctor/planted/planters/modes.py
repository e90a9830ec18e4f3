"""Mistakes with modes, and in evaluation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build, match
from tests.doctor.planted.planters.base import WITHOUT_MODES, delete_all, plants, trains
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, Site, View, method


# In distillation, each model is trained before it is first evaluated, and not again.
@plants("SS401", "SR", skip=(*WITHOUT_MODES, "lightning_module", "distillation"))
def never_back_to_train_mode(view: View) -> Iterator[Edit]:
    evaluated = {site.text("_m").removeprefix("ddp_") for site in view.calls("_m.eval()")}
    names = {site.text("_m") for site in view.calls("_m.train()")}
    for name in sorted(names & evaluated):
        yield lambda name=name: delete_all(
            [site for site in view.calls("_m.train()") if site.text("_m") == name]
        )


@plants("SS401", "SR", only=("functions", "multilabel", "several_files", "char_rnn"))
def train_mode_before_all_epochs(view: View) -> Iterator[Edit]:
    callers = {
        "functions": ("main", "train(args"),
        "multilabel": ("run_training", "train_fn("),
        "several_files": ("main", "train_one_epoch("),
        "char_rnn": ("main", "run_epoch("),
    }
    function, call = callers[view.script.name]
    loops = [
        site
        for site in view.statements()
        if isinstance(site.node, ast.For)
        and site.function is not None
        and site.function.name == function
        and call in ast.unparse(site.node)
    ]
    for loop in loops:

        def edit(loop: Site = loop) -> None:
            delete_all(list(view.calls("model.train()")))
            loop.insert_before("model.train()")

        yield edit


@plants("SS402", "SR", skip=(*WITHOUT_MODES, "gan", "distillation", "lightning_module"))
def never_to_eval_mode(view: View) -> Iterator[Edit]:
    for site in view.calls("_m.eval()"):
        yield site.remove


@plants("SS402", "SR", only=("accumulation", "tagger", "tabular", "accelerate_loop", "workers"))
def train_mode_for_all(view: View) -> Iterator[Edit]:
    yield from view.rewrite("_m.eval()", "_m.train()")


@plants("SS403", "SR", skip=("lbfgs", "lightning_module", "gan", "distillation"))
def evaluate_with_a_graph(view: View) -> Iterator[Edit]:
    for site in view.statements():
        node = site.node
        if isinstance(node, ast.FunctionDef):
            kept = [d for d in node.decorator_list if not is_without_graph(d)]
            if len(kept) < len(node.decorator_list) and not trains(site_in(node, site)):
                yield lambda node=node, kept=kept: setattr(node, "decorator_list", kept)
        elif isinstance(node, ast.With) and not trains_below(node):
            items = [item for item in node.items if not is_without_graph(item.context_expr)]
            text = ast.unparse(node)
            if len(items) == len(node.items) or ".numpy()" in text or "decode(" in text:
                continue
            yield lambda site=site, items=items: unwrap(site, items)


def site_in(node: ast.FunctionDef, site: Site) -> Site:
    return Site(node.body, node.body[0], {}, ast.Constant(None), (*site.above, node))


def trains_below(node: ast.AST) -> bool:
    return ".backward(" in ast.unparse(node)


def is_without_graph(node: ast.expr) -> bool:
    text = ast.unparse(node)
    return text in ("torch.no_grad()", "torch.inference_mode()", "torch.no_grad")


def unwrap(site: Site, items: list[ast.withitem]) -> None:
    assert isinstance(site.node, ast.With)
    if items:
        site.node.items = items
        return
    index = site.index
    site.block[index : index + 1] = site.node.body


# In the others, the last epoch is the best one.
@plants(
    "SS406",
    "SR",
    only=("early_stopping", "finetune", "multilabel"),
    hidden=("early_stopping", "multilabel"),
)
def keep_a_reference(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for change in list(view.rewrite("copy.deepcopy(_m.state_dict())", "_m.state_dict()")):
            change()
        for tree in view.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.DictComp) and "clone()" in ast.unparse(node):
                    become(node, build("model.state_dict()", {}))

    yield edit


@plants(
    "SS406",
    "SR",
    only=("early_stopping", "finetune", "multilabel"),
    hidden=("early_stopping", "multilabel"),
)
def keep_a_shallow_copy(view: View) -> Iterator[Edit]:
    texts = ("_m.state_dict().copy()", "dict(_m.state_dict())", "{**_m.state_dict()}")
    names = ("early_stopping", "finetune", "multilabel")
    text = texts[names.index(view.script.name)]

    def edit() -> None:
        for change in list(view.rewrite("copy.deepcopy(_m.state_dict())", text)):
            change()
        for tree in view.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.DictComp) and "clone()" in ast.unparse(node):
                    become(node, build(text.replace("_m", "model"), {}))

    yield edit


@plants("SS410", "SR", only=("char_rnn", "one_cycle"))
def dropout_without_mode(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "torch.nn.functional.dropout(_x, p=_p, training=_t)",
        "torch.nn.functional.dropout(_x, _p)",
    )
    yield from view.rewrite(
        "torch.nn.functional.dropout(_x, _p, _t)", "torch.nn.functional.dropout(_x, p=_p)"
    )


@plants("SS410", "SR", skip=("lightning_module",), hidden=("ddp",))  # it has no evaluation
def functional_instead_of_a_layer(view: View) -> Iterator[Edit]:
    for cls in view.modules():
        forward = method(cls, "forward")
        for node in ast.walk(forward) if forward else ():
            bound = match("self.dropout(_x)", node) or match("self.drop(_x)", node)
            if bound is not None:
                yield lambda node=node, bound=bound: become(
                    node, build("torch.nn.functional.dropout(_x, 0.25)", bound)
                )


@plants("SS410", "SR", only=("functions", "tagger", "hf_like_trainer"))
def layer_made_in_forward(view: View) -> Iterator[Edit]:
    yield from view.rewrite("self.dropout(_x)", "torch.nn.Dropout(0.25)(_x)")


@plants("SS411", "SR", only=("language_model",))
def attention_dropout_without_mode(view: View) -> Iterator[Edit]:
    yield from view.rewrite("self.dropout if self.training else 0", "self.dropout")


@plants("SS411", "SR", only=("language_model",))
def attention_dropout_as_a_number(view: View) -> Iterator[Edit]:
    yield from view.rewrite("self.dropout if self.training else 0", "0.1")


@plants("SS404", "S", only=("accumulation",))
def mean_of_batch_means(view: View) -> Iterator[Edit]:
    def edit() -> None:
        pattern = "torch.utils.data.DataLoader(build_dataset(40), batch_size=20)"
        changes = (
            (pattern, "torch.utils.data.DataLoader(build_dataset(40), batch_size=16)"),
            ("_l.item() * labels.size(0)", "_l.item()"),
            ("valid_loss / seen", "valid_loss / len(valid_loader)"),
        )
        for before, after in changes:
            for change in list(view.rewrite(before, after)):
                change()

    yield edit


@plants("SS407", "S", only=("early_stopping",))
def test_data_for_early_stopping(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "evaluate(model, val_loader, criterion)", "evaluate(model, test_loader, criterion)"
    )
