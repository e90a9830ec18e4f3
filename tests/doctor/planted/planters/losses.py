"""Mistakes with losses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build
from tests.doctor.planted.planters.base import plants
from tests.doctor.planted.planters.order import in_evaluation
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, Site, View, method

CLASSIFIERS = {  # bases whose model has a class, with the dimension of its classes
    "functions": ("Net", 1),
    "trainer_class": ("Classifier", -1),
    "several_files": ("SmallResNet", 1),
    "accelerate_loop": ("TextClassifier", -1),
    "finetune": ("Backbone", 1),
    "ddp": ("ToyModel", 1),
    "tagger": ("Tagger", -1),
    "segmentation": ("UNet", 1),
}


def training_losses(view: View, function: str, module: str) -> list[tuple[Site, ast.Call]]:
    """Return the losses that the script trains with."""
    found = [pair for pair in view.losses(function, module) if not in_evaluation(pair[0])]
    if view.script.name == "hf_like_trainer":  # its subclass does not use that of the model
        found = [(s, c) for s, c in found if s.function and s.function.name != "forward"]
    return found


def change_prediction(call: ast.Call, template: str) -> None:
    call.args[0] = build(template, {"_a": call.args[0]})


@plants("SS501", "SR", skip=("segmentation",))
def softmax_in_the_call(view: View) -> Iterator[Edit]:
    texts = ("torch.softmax(_a, dim=-1)", "_a.softmax(-1)", "torch.nn.functional.softmax(_a, -1)")
    for index, (_, call) in enumerate(training_losses(view, "cross_entropy", "CrossEntropyLoss")):
        text = texts[(index + len(view.script.name)) % len(texts)]
        yield lambda call=call, text=text: change_prediction(call, text)


@plants("SS501", "SR", only=tuple(CLASSIFIERS))
def softmax_in_the_model(view: View) -> Iterator[Edit]:
    name, dim = CLASSIFIERS[view.script.name]
    for cls in view.modules():
        forward = method(cls, "forward")
        if cls.name == name and forward is not None and isinstance(forward.body[-1], ast.Return):
            yield lambda node=forward.body[-1]: setattr(
                node, "value", build(f"torch.softmax(_a, dim={dim})", {"_a": node.value})
            )


@plants("SS501", "SR", only=("amp_loop", "accumulation", "distillation", "workers"))
def softmax_as_the_last_layer(view: View) -> Iterator[Edit]:
    for node, _ in list(view.expressions("torch.nn.Sequential(*_r)")):
        assert isinstance(node, ast.Call)
        yield lambda node=node: node.args.append(build("torch.nn.Softmax(dim=1)", {}))


@plants("SS502", "SR", only=("multilabel", "resume"))
def sigmoid_before_the_logits_loss(view: View) -> Iterator[Edit]:
    for _, call in training_losses(view, "binary_cross_entropy_with_logits", "BCEWithLogitsLoss"):
        yield lambda call=call: change_prediction(call, "torch.sigmoid(_a)")


@plants("SS502", "SR", only=("multilabel",))
def sigmoid_in_the_model(view: View) -> Iterator[Edit]:
    yield from view.rewrite("self.head(_x)", "self.head(_x).sigmoid()")


@plants("SS502", "SR", only=("resume",))
def sigmoid_as_the_last_layer(view: View) -> Iterator[Edit]:
    for node, _ in list(view.expressions("torch.nn.Sequential(*_r)")):
        assert isinstance(node, ast.Call)
        yield lambda node=node: node.args.append(build("torch.nn.Sigmoid()", {}))


@plants("SS502", "SR", only=("gan",))
def logits_loss_of_probabilities(view: View) -> Iterator[Edit]:
    yield from view.rewrite("torch.nn.BCELoss()", "torch.nn.BCEWithLogitsLoss()")


@plants("SS502", "SR", only=("vae",))
def logits_function_of_probabilities(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "torch.nn.functional.binary_cross_entropy(_a, _b, **_k)",
        "torch.nn.functional.binary_cross_entropy_with_logits(_a, _b, **_k)",
    )


@plants("SS502", "S", only=("gan", "multilabel", "resume"), runs=False)
def probabilities_loss_of_logits(view: View) -> Iterator[Edit]:
    yield from view.rewrite("torch.nn.BCEWithLogitsLoss(**_k)", "torch.nn.BCELoss()")
    for node, _ in list(view.expressions("torch.nn.Sequential(*_r)")):
        assert isinstance(node, ast.Call)
        if ast.unparse(node.args[-1]) == "torch.nn.Sigmoid()":
            yield lambda node=node: node.args.pop()


@plants("SS503", "SR", only=("one_cycle",))
def nll_of_other_outputs(view: View) -> Iterator[Edit]:
    pattern = "torch.nn.functional.log_softmax(_a, dim=1)"
    yield from view.rewrite(pattern, "_a")
    yield from view.rewrite(pattern, "torch.softmax(_a, dim=1)")


@plants("SS503", "SR", skip=("segmentation", "distillation"))
def nll_of_logits(view: View) -> Iterator[Edit]:
    if view.script.name != "hf_like_trainer":  # its subclass has a loss of its own
        yield from view.rewrite("torch.nn.CrossEntropyLoss()", "torch.nn.NLLLoss()")
    if "model.eval" in view.source or view.script.name == "language_model":
        for _, call in training_losses(view, "cross_entropy", "_"):
            yield lambda call=call: setattr(call, "func", build("torch.nn.functional.nll_loss", {}))


@plants("SS504", "SR", only=("distillation",))
def divergence_of_wrong_arguments(view: View) -> Iterator[Edit]:
    pattern = "torch.nn.functional.kl_div(_a, _b, reduction='batchmean')"
    for template in (
        "torch.nn.functional.kl_div(_b, _a, reduction='batchmean')",
        "torch.nn.functional.kl_div(_a.exp(), _b, reduction='batchmean')",
        "torch.nn.functional.kl_div(_a, _b)",
        "torch.nn.functional.kl_div(_a, _b, reduction='mean')",
        "torch.nn.functional.kl_div(_a, torch.log(_b), reduction='batchmean')",
    ):
        yield from view.rewrite(pattern, template)


@plants("SS504", "SR", only=("distillation",))
def divergence_of_probabilities(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "torch.nn.functional.log_softmax(_a, dim=-1)", "torch.nn.functional.softmax(_a, dim=-1)"
    )


@plants("SS506", "R", skip=("segmentation", "accelerate_loop", "lightning_module"))
def scale_the_logits(view: View) -> Iterator[Edit]:
    for _, call in training_losses(view, "cross_entropy", "CrossEntropyLoss")[:1]:
        yield lambda call=call: change_prediction(call, "_a * 60")


@plants("SS506", "R", only=("language_model",))
def start_with_large_weights(view: View) -> Iterator[Edit]:
    yield from view.rewrite("0.02", "1.0")


OTHER_SHAPES = ("segmentation", "language_model", "char_rnn", "tagger", "hf_like_trainer")


@plants("SS507", "SR", skip=OTHER_SHAPES)
def logarithm_of_a_softmax(view: View) -> Iterator[Edit]:
    text = "-torch.log(torch.softmax(_a, dim=1)).gather(1, _b.unsqueeze(1)).mean()"
    for _, call in training_losses(view, "cross_entropy", "CrossEntropyLoss"):
        yield lambda call=call: become(call, build(text, {"_a": call.args[0], "_b": call.args[1]}))


@plants("SS507", "SR", only=("vae",))
def cross_entropy_by_hand(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "torch.nn.functional.binary_cross_entropy(_a, _b, **_k)",
        "-(_b * torch.log(_a) + (1 - _b) * torch.log(1 - _a)).sum()",
    )


@plants("SS507", "SR", only=("multilabel", "resume"))
def logarithm_of_a_sigmoid(view: View) -> Iterator[Edit]:
    text = "-(_b * torch.sigmoid(_a).log() + (1 - _b) * (1 - torch.sigmoid(_a)).log()).mean()"
    for _, call in training_losses(view, "binary_cross_entropy_with_logits", "BCEWithLogitsLoss"):
        yield lambda call=call: become(call, build(text, {"_a": call.args[0], "_b": call.args[1]}))


@plants("SS508", "SR", only=("tagger",))
def padding_of_class_0(view: View) -> Iterator[Edit]:
    def edit() -> None:
        pattern = "torch.nn.CrossEntropyLoss(ignore_index=PAD_TAG)"
        for change in list(view.rewrite(pattern, "torch.nn.CrossEntropyLoss()")):
            change()
        for change in list(view.rewrite("-100", "0")):
            change()

    yield edit


@plants("SS511", "SR", only=("distillation", "segmentation", "one_cycle"))
def softmax_over_the_batch(view: View) -> Iterator[Edit]:
    for name in ("softmax", "log_softmax"):
        yield from view.rewrite(
            f"torch.nn.functional.{name}(_a, dim=_d)", f"torch.nn.functional.{name}(_a, dim=0)"
        )


@plants("SS511", "SR", only=("distillation", "one_cycle"))
def softmax_without_a_dimension(view: View) -> Iterator[Edit]:
    for name in ("softmax", "log_softmax"):
        yield from view.rewrite(
            f"torch.nn.functional.{name}(_a, dim=_d)", f"torch.nn.functional.{name}(_a)"
        )


@plants("SS405", "SR", only=("tabular",))
def targets_without_their_last_dimension(view: View) -> Iterator[Edit]:
    yield from view.rewrite("yb.unsqueeze(1)", "yb")


@plants("SS405", "SR", only=("tabular", "streaming", "flat_script", "early_stopping"))
def predictions_without_their_last_dimension(view: View) -> Iterator[Edit]:
    texts = ("_a.squeeze(-1)", "_a[:, 0]", "_a.flatten()")
    found = [pair for name in ("mse_loss", "huber_loss") for pair in squared_losses(view, name)]
    for _, call in found:
        for text in texts:
            yield lambda call=call, text=text: change_prediction(call, text)


def squared_losses(view: View, function: str) -> list[tuple[Site, ast.Call]]:
    return training_losses(view, function, {"mse_loss": "MSELoss"}.get(function, "_"))
