"""Mistakes with parameters, modules and optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build, build_statements, match
from tests.doctor.planted.planters.base import import_first, list_optimizers, plants, trains
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, Site, View, method

# They prepare the model together with the optimizer, or a GradScaler raises an error.
COPIED = ("ddp", "accelerate_loop", "lightning_module", "finetune", "amp_loop")
LAYERS = ("Linear", "Conv2d", "LSTM", "GRU", "LayerNorm")


def optimized_model(site: Site) -> str | None:
    """Return the model whose parameters an optimizer gets, if it is one name."""
    assert isinstance(site.call, ast.Call)
    found = match("_m.parameters()", site.call.args[0])
    return ast.unparse(found["_m"]) if found else None


HEADS = {
    "functions": "fc2",
    "several_files": "fc",
    "multilabel": "head",
    "forecasting": "fc",
    "char_rnn": "out",
}


@plants("SS202", "SR", only=tuple(HEADS))
def replace_the_head_after_the_optimizer(view: View) -> Iterator[Edit]:
    head = HEADS[view.script.name]
    for site in list_optimizers(view):
        model = optimized_model(site)
        name = f"{model}.{head}"
        text = f"{name} = torch.nn.Linear({name}.in_features, {name}.out_features)"
        yield lambda site=site, text=text: site.insert_after(text, {})


@plants("SS202", "SR", only=("finetune",))
def make_the_head_after_its_optimizer(view: View) -> Iterator[Edit]:
    for site in view.calls("torch.nn.Linear(model.fc.in_features, 3)"):
        optimizer = list_optimizers(view)[0]
        yield lambda site=site, optimizer=optimizer: site.move_after(optimizer)


@plants("SS201", "SR", only=("finetune",))
def unfreeze_for_an_old_optimizer(view: View) -> Iterator[Edit]:
    for site in list_optimizers(view)[1:]:
        yield site.remove


@plants("SS201", "SR", skip=("finetune", "ddp", "accelerate_loop", "lbfgs", "lightning_module"))
def unfreeze_after_the_optimizer(view: View) -> Iterator[Edit]:
    for site in list_optimizers(view):
        model = optimized_model(site)
        if model is None:
            continue

        def edit(site: Site = site, model: str = model) -> None:
            assert isinstance(site.call, ast.Call)
            text = f"filter(lambda p: p.requires_grad, {model}.parameters())"
            site.call.args[0] = build(text, {})
            site.insert_before(
                f"for p in list({model}.parameters())[:2]:\n    p.requires_grad = False", {}
            )
            site.insert_after(f"for p in {model}.parameters():\n    p.requires_grad = True", {})

        yield edit


@plants("SS202", "SR", skip=(*COPIED, "sharded"))  # FSDP cannot be copied
def copy_the_model_after_the_optimizer(view: View) -> Iterator[Edit]:
    for site in list_optimizers(view):
        model = optimized_model(site)
        if model is None or model == "self":
            continue

        def edit(site: Site = site, model: str = model) -> None:
            site.insert_after(f"{model} = copy.deepcopy({model})", {})
            import_first(view, "import copy")

        yield edit


@plants("SS202", "SR", skip=COPIED)
def make_the_model_again_after_the_optimizer(view: View) -> Iterator[Edit]:
    for site in list_optimizers(view):
        model = optimized_model(site)
        for made in view.statements():
            if made.block is not site.block or not isinstance(made.node, ast.Assign):
                continue
            if ".to(" in ast.unparse(made.node):  # it is the same model
                continue
            if [ast.unparse(t) for t in made.node.targets] == [model] and made.index < site.index:
                yield lambda site=site, made=made: site.block.insert(site.index + 1, made.node)


@plants("SS203", "R", skip=("lightning_module", "ddp", "finetune"))
def add_an_unused_layer(view: View) -> Iterator[Edit]:
    for cls in view.modules():
        init = method(cls, "__init__")
        if init is not None and any(f"torch.nn.{n}(" in ast.unparse(init) for n in LAYERS):
            yield lambda init=init: init.body.extend(
                build_statements("self.aux_head = torch.nn.Linear(8, 4)")
            )


@plants("SS203", "R", only=("functions", "several_files", "trainer_class", "multilabel", "tagger"))
def detach_between_layers(view: View) -> Iterator[Edit]:
    for cls in view.modules():
        forward = method(cls, "forward")
        if forward is None:
            continue
        for index, node in enumerate(forward.body[:-1]):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "x" and index == 0:
                yield lambda body=forward.body, index=index: body.insert(
                    index + 1, build_statements("x = x.detach()")[0]
                )


@plants("SS204", "SR", only=("trainer_class", "language_model", "one_cycle"))
def keep_layers_in_a_list(view: View) -> Iterator[Edit]:
    yield from view.rewrite("torch.nn.ModuleList(_a)", "_a")
    yield from view.rewrite("torch.nn.ModuleList()", "[]")


# Without any parameter, an optimizer and DistributedDataParallel raise an error.
@plants("SS204", "SR", skip=("lbfgs", "lightning_module", "ddp", "forecasting"))
def keep_layers_in_a_dict(view: View) -> Iterator[Edit]:
    for cls in view.modules():
        init = method(cls, "__init__")
        layers = [
            node
            for node in (init.body if init else [])
            if isinstance(node, ast.Assign)
            and any(f"torch.nn.{name}(" in ast.unparse(node.value)[:20] for name in LAYERS)
        ]
        if len(layers) < 2 or f"{cls.name}().fc" in view.source or "model.fc" in view.source:
            continue
        yield lambda cls=cls, layers=layers[:2]: move_into_dict(cls, layers)


def move_into_dict(cls: ast.ClassDef, layers: list[ast.Assign]) -> None:
    names = []
    for node in layers:
        target = node.targets[0]
        assert isinstance(target, ast.Attribute)
        names.append(target.attr)
    for node in ast.walk(cls):
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "self"
            and node.attr in names
        ):
            become(node, ast.Subscript(build("self.parts", {}), ast.Constant(node.attr), node.ctx))
    init = method(cls, "__init__")
    assert init is not None
    init.body.insert(init.body.index(layers[0]), build_statements("self.parts = {}")[0])


@plants("SS205", "SR", only=("one_cycle",))
def keep_a_buffer_as_an_attribute(view: View) -> Iterator[Edit]:
    yield from (
        lambda site=site: site.replace("self.mean = _v")
        for site in view.calls("self.register_buffer('mean', _v)")
    )


TAKE_X = ("functions", "trainer_class", "several_files", "finetune", "segmentation")


@plants("SS205", "SR", only=TAKE_X)
def shift_inputs_by_a_random_tensor(view: View) -> Iterator[Edit]:
    for cls in view.modules():
        init, forward = method(cls, "__init__"), method(cls, "forward")
        if init is None or forward is None or [a.arg for a in forward.args.args] != ["self", "x"]:
            continue

        def edit(init: ast.FunctionDef = init, forward: ast.FunctionDef = forward) -> None:
            init.body.extend(build_statements("self.offset = 0.01 * torch.randn(1)"))
            forward.body[0:0] = build_statements("x = x + self.offset")

        yield edit


@plants("SS206", "S", runs=False)
def forget_super(view: View) -> Iterator[Edit]:
    for cls in view.modules():
        init = method(cls, "__init__")
        for node in init.body if init else []:
            if "super(" in ast.unparse(node):
                yield lambda init=init, node=node: init.body.remove(node)


@plants("SS208", "S")
def adam_with_decay(view: View) -> Iterator[Edit]:
    for node, bound in list(view.expressions("torch.optim.AdamW(_p, **_k)")):
        if "weight_decay" in ast.unparse(node):
            yield lambda node=node, bound=bound: become(
                node, build("torch.optim.Adam(_p, **_k)", bound)
            )


@plants("SS208", "S", only=("functions", "multilabel", "distillation", "tabular", "vae"))
def add_decay_to_adam(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "torch.optim.Adam(_p, **_k)", "torch.optim.Adam(_p, weight_decay=1e-4, **_k)"
    )


MODELS = ("model", "net", "netG", "netD", "self.model", "critic", "student", "tagger", "regressor")


@plants("SS209", "S", skip=("accelerate_loop",))
def call_forward(view: View) -> Iterator[Edit]:
    for site in view.calls("_m(_x, *_r, **_k)"):
        if site.text("_m") in MODELS and trains(site):
            yield lambda site=site: become(
                site.call, build("_m.forward(_x, *_r, **_k)", site.bound)
            )


@plants("SS214", "SR", only=("language_model",))
def train_in_bfloat16(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for change in list(view.rewrite("model.to(device)", "model.to(device, torch.bfloat16)")):
            change()
        for node, _ in list(view.expressions("3e-3")):
            become(node, ast.Constant(1e-4))
        for node, _ in list(view.expressions("3e-4")):
            become(node, ast.Constant(1e-5))

    yield edit


@plants("SS214", "SR", only=("tagger",))
def convert_the_model_to_bfloat16(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for change in list(view.rewrite("Tagger()", "Tagger().bfloat16()")):
            change()
        for change in list(view.rewrite("0.01", "1e-4")):
            change()

    yield edit


# 0.01 is the default of AdamW: a run does not show that it was written.
@plants("SS207", "SR", only=("language_model", "hf_like_trainer"), hidden=("hf_like_trainer",))
def decay_for_all_parameters(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "torch.optim.AdamW(groups, **_k)",
        "torch.optim.AdamW(self.parameters(), lr=learning_rate, weight_decay=weight_decay)",
    )
    yield from view.rewrite(
        "torch.optim.AdamW(grouped, lr=_l)",
        "torch.optim.AdamW(self.model.parameters(), lr=_l, weight_decay=self.args.weight_decay)",
    )


@plants("SS213", "SR", only=("finetune",))
def smallest_rate_for_the_last_layer(view: View) -> Iterator[Edit]:
    layers = "[m for m in [*model.features, model.fc] if isinstance(m, torch.nn.Linear)]"
    pattern = "torch.optim.SGD([_f, _g], **_k)"
    for text in (
        f"torch.optim.SGD([{{'params': m.parameters(), 'lr': 0.1 * 0.5 ** i}} "
        f"for i, m in enumerate({layers})], momentum=0.9)",
        "torch.optim.SGD([{'params': p, 'lr': 0.1 * 0.8 ** i} "
        "for i, p in enumerate(model.parameters())], momentum=0.9)",
    ):
        yield from view.rewrite(pattern, text)


@plants("SS116", "R", only=("accumulation",))
def normalise_the_micro_batches(view: View) -> Iterator[Edit]:
    for node, _ in list(view.expressions("torch.nn.Sequential(*_r)")):
        assert isinstance(node, ast.Call)
        yield lambda node=node: node.args.insert(1, build("torch.nn.BatchNorm1d(32)", {}))


@plants("SS408", "R", only=("long_run",))
def learning_rate_of_another_problem(view: View) -> Iterator[Edit]:
    for rate in ("1e-8", "300.0"):
        yield from view.rewrite("torch.optim.AdamW(_p, lr=_r)", f"torch.optim.AdamW(_p, lr={rate})")
