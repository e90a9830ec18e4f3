"""The loss of an ejected script, summed over its items, and what counts the items."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import RecipeError
from surestep.eject.choices import Choices, flags_of
from surestep.eject.data import loads
from surestep.eject.layout import WIDTH, format_call, format_tuple
from surestep.engine.losses.base import IGNORED
from surestep.engine.losses.classification import Binary, MultiClass, MultiLabel, WeightedLossModule
from surestep.engine.losses.distillation import Distillation
from surestep.engine.losses.registry import get_loss
from surestep.engine.losses.regression import Huber, Mae, Mse
from surestep.engine.losses.segmentation import Dice, DiceBce
from surestep.engine.losses.torch_losses import FUNCTIONS
from surestep.engine.task.task import Task

_BCE = "binary_cross_entropy_with_logits"
# By type of a loss: the function of torch, and its options.
_OF_TORCH: Mapping[type, tuple[str, Mapping[str, Any]]] = {
    nn.CrossEntropyLoss: ("cross_entropy", {"ignore_index": IGNORED, "label_smoothing": 0.0}),
    nn.NLLLoss: ("nll_loss", {"ignore_index": IGNORED}),
    nn.MSELoss: ("mse_loss", {}),
    nn.L1Loss: ("l1_loss", {}),
    nn.SmoothL1Loss: ("smooth_l1_loss", {"beta": 1.0}),
    nn.HuberLoss: ("huber_loss", {"delta": 1.0}),
    nn.BCEWithLogitsLoss: (_BCE, {}),
    MultiClass: ("cross_entropy", {"ignore_index": IGNORED, "label_smoothing": 0.0}),
    Binary: (_BCE, {}),
    MultiLabel: (_BCE, {}),
    Mse: ("mse_loss", {}),
    Mae: ("l1_loss", {}),
    Huber: ("huber_loss", {"delta": 1.0}),
}
_HEAD = '''\
def sum_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss summed over its items."""
'''


def choose_loss(task: Task, fitted: nn.Module | None, targets: Sequence[Tensor]) -> Choices:
    """Return what a loss chooses of the template code, and its functions.

    Args:
        task: whose loss it is.
        fitted: the loss with the class weights that the training data gives it.
        targets: all of them, or the first ones of datasets.

    Raises:
        RecipeError: eject does not print this loss.
    """
    given: Any = task.loss
    if isinstance(given, str) and given not in ("model", "model in training"):
        given = get_loss(given)
    if given in FUNCTIONS:
        given = FUNCTIONS[given]()
    if type(given) in (Dice, DiceBce):
        return _choose_dice(given, targets)
    if type(given) is Distillation and task.teacher is not None:
        return _choose_distillation(given, targets)
    if type(given) in _OF_TORCH:
        return _choose_known(given, fitted or given, targets, shows_all=not loads(task))
    if isinstance(given, nn.Module) or not callable(given):
        name = repr(given) if isinstance(given, str) else type(given).__name__
        raise RecipeError(
            f"eject does not print the loss {name}. Use a loss of torch, one of "
            f"{', '.join(sorted(kind.__name__ for kind in _OF_TORCH))}, or a function of "
            "(outputs, targets) in the recipe."
        )
    return _choose_own(task, targets)


def _choose_own(task: Task, targets: Sequence[Tensor]) -> Choices:
    """Return the choices for a function of the recipe, which returns a mean."""
    if task.items == "samples":
        return Choices(flags_of(own=True)) | _count_by("len({})")
    if task.items == "tokens":
        counted = _count_kept(targets, IGNORED, shows_all=not loads(task))
        return Choices(flags_of(own=True)) | counted
    raise RecipeError(
        "Task(items=...) is a function, which eject does not print. Use 'samples' or 'tokens'."
    )


def _choose_known(
    given: Any, fitted: Any, targets: Sequence[Tensor], *, shows_all: bool
) -> Choices:
    function, defaults = _OF_TORCH[type(given)]
    _check_options(given)
    if "ignore_index" in defaults and any(one.dtype != torch.int64 for one in targets):
        raise RecipeError(
            f"The targets of {type(given).__name__} are {targets[0].dtype}, and eject prints it "
            "for class indices of torch.int64. Use y.long()."
        )
    options = {name: getattr(given, name) for name in defaults}
    more = [f"{name}={value!r}" for name, value in options.items() if value != defaults[name]]
    weights, name = _weights_of(fitted), "weight" if function != _BCE else "pos_weight"
    constants: tuple[str, ...] = ()
    if weights is not None:
        # surestep's own losses give the weights the dtype of the outputs, and torch's do not.
        is_own = isinstance(given, WeightedLossModule)
        is_balanced = is_own and isinstance(given.options[given.weight_option], str)
        constants = (_weights_constant(weights, is_balanced=is_balanced),)
        more.append(f"{name}=WEIGHTS{'.to(outputs.dtype)' if is_own else ''}")
    wanted = "targets.to(outputs.dtype)" if function == _BCE else "targets"
    call = format_call(
        f"functional.{function}",
        ["outputs", wanted, *more, 'reduction="sum"'],
        depth=4,
        start="return ",
    )
    if weights is not None and name == "weight":
        counted = _count_by("WEIGHTS[{}].double().sum().item()", "weighted")
    elif "ignore_index" in defaults:
        counted = _count_kept(targets, int(given.ignore_index), shows_all=shows_all)
    else:
        counted = _count_elements(targets)
    return Choices(code=(*constants, f"{_HEAD}{call}\n")) | counted


def _check_options(given: Any) -> None:
    """Reject options of a known loss that its printed function does not have."""
    name = type(given).__name__
    if getattr(given, "reduction", "mean") != "mean" or given._forward_hooks:
        raise RecipeError(f"{name} has reduction='sum' or a hook, which eject does not print.")
    if getattr(given, "class_dim", 1) != 1:
        raise RecipeError(f"{given!r} reads classes in the last dimension. Use class_dim=1.")
    if isinstance(given, Binary) and (given.ignore_index is not None or given.label_smoothing):
        raise RecipeError(f"eject prints {name} without ignore_index and label_smoothing alone.")
    if isinstance(given, nn.BCEWithLogitsLoss) and given.weight is not None:
        raise RecipeError("eject prints BCEWithLogitsLoss without weight. Use pos_weight.")


def _weights_of(loss: Any) -> Tensor | None:
    """Return the class weights of a loss, on the host; None if it has none."""
    if isinstance(loss, WeightedLossModule):
        return loss.host_weights
    weights = getattr(loss, "pos_weight", None)
    return getattr(loss, "weight", None) if weights is None else weights


def _weights_constant(weights: Tensor, *, is_balanced: bool) -> str:
    values = [repr(value) for value in weights.reshape(-1).tolist()]
    if len(values) > 100:
        raise RecipeError(f"The loss has {len(values)} class weights; eject prints up to 100.")
    dtype = str(weights.dtype)
    listed = f"[{', '.join(values)}]" if weights.dim() else values[0]
    line = f"WEIGHTS = torch.tensor({listed}, dtype={dtype})"
    if len(line) > WIDTH:
        line = format_call(
            "torch.tensor", [format_tuple(values, depth=4), f"dtype={dtype}"], start="WEIGHTS = "
        )
    why = (
        "# Samples / (classes * samples of the class) of the training data: each counts the same.\n"
    )
    return (why if is_balanced else "") + line


def _choose_dice(given: Dice, targets: Sequence[Tensor]) -> Choices:
    if not all(one.is_floating_point() for one in targets) or given.per != "sample":
        raise RecipeError(f"eject prints {given!r} for masks of numbers, by sample, alone.")
    constants = {"SMOOTH": given.smooth}
    if isinstance(given, DiceBce):
        constants["BCE_WEIGHT"] = given.bce
    name = "sum_dice_bce" if isinstance(given, DiceBce) else "sum_dice"
    call = f"    return {name}(outputs.float(), targets)\n"
    return Choices(constants=constants, code=(f"{_HEAD}{call}",)) | _count_by("len({})")


def _choose_distillation(given: Distillation, targets: Sequence[Tensor]) -> Choices:
    if given.label_smoothing or any(bool((one == given.ignore_index).any()) for one in targets):
        raise RecipeError(
            "eject prints distillation without label_smoothing, and of labels that all count. "
            "Leave the option out, and samples whose label is ignored."
        )
    if any(one.dtype != torch.int64 for one in targets):
        raise RecipeError("eject prints distillation for labels of torch.int64. Use y.long().")
    constants = {"TEMPERATURE": given.temperature, "ALPHA": given.alpha}
    renamed = {"sum_loss(": "sum_distillation("}
    return Choices(constants=constants, renamed=renamed) | _count_elements(targets)


def _count_kept(targets: Sequence[Tensor], ignored: int, *, shows_all: bool) -> Choices:
    """Return the choices that count targets that are not ignored, if some may be.

    Raises:
        RecipeError: all targets of a sample are ignored.
    """
    kept = [one != ignored for one in targets]
    if shows_all and all(bool(one.all()) for one in kept):
        return _count_elements(targets)
    if shows_all and not all(bool(one.reshape(len(one), -1).any(dim=1).all()) for one in kept):
        raise RecipeError(
            f"All targets of some samples are {ignored}, which the loss ignores: such a "
            "batch may have nothing to learn from. Leave those samples out of the data."
        )
    return _count_by(f"int(({{}} != {ignored}).sum())")


def _count_elements(targets: Sequence[Tensor]) -> Choices:
    return _count_by("{}.numel()" if targets[0].dim() > 1 else "len({})")


def _count_by(template: str, *flags: str) -> Choices:
    """Return the choices that count items by an expression of the targets, written for `{}`."""
    names = ("y[rows]", "y[part]", "y")
    parts = {f"count_items({name})": template.format(name) for name in names}
    if template == "len({})":
        parts |= {f"count_items(y[{rows}])": f"len({rows})" for rows in ("rows", "part")}
    return Choices(flags_of(**dict.fromkeys(flags, True)), renamed=parts)
