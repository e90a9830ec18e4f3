"""What losses that compare element with element expect of the first batch, in words."""

from torch import Tensor

from surestep.base.errors import DataError, TaskError
from surestep.engine.losses.base import FirstBatch
from surestep.engine.losses.input_checks import require_tensors


def check_same_shape(first: FirstBatch) -> tuple[Tensor, Tensor]:
    """Check that outputs and targets have one shape.

    Raises:
        TaskError: they have not.
    """
    outputs, targets = require_tensors(first)
    if outputs.shape == targets.shape:
        return outputs, targets
    one = outputs.numel() == targets.numel()
    instead = ""
    if not one and outputs.dim() == targets.dim() + 1 and not targets.is_floating_point():
        instead = (
            f" For class indices with {outputs.shape[1]} outputs use surestep.losses.multiclass()."
        )
    elif not one:
        instead = " Or give the model as many outputs as there are targets."
    raise TaskError(
        f"The model's outputs have shape {tuple(outputs.shape)} and the targets "
        f"{tuple(targets.shape)}: the loss would compare each with each. Use "
        "outputs.squeeze(-1) or targets.unsqueeze(-1) so that they are equal." + instead
    )


def check_floating(targets: Tensor, called: str) -> None:
    """Check that targets are floating point numbers.

    Raises:
        DataError: they are not.
    """
    if not targets.is_floating_point():
        raise DataError(
            f"The targets are {targets.dtype}, and {called} takes floating "
            "point numbers. Use targets.float()."
        )


def check_label_targets(targets: Tensor, *, called: str, ignored: int | None = None) -> None:
    """Check that targets lie between 0 and 1.

    Raises:
        DataError: they do not.
    """
    kept = targets if ignored is None else targets[targets != ignored]
    if not kept.numel():
        return
    low, high = float(kept.min()), float(kept.max())
    if low >= 0 and high <= 1:
        return
    says = f"The targets run from {low:g} to {high:g}, and {called} takes 0 to 1."
    if bool(((kept == -1) | (kept == 1)).all()):
        raise DataError(f"{says} Where they are -1 and 1, use (targets + 1) / 2.")
    if bool((kept == kept.round()).all()) and low >= 0:
        raise DataError(
            f"{says} For class indices use surestep.losses.multiclass() (nn.CrossEntropyLoss()) "
            f"and {int(high) + 1} outputs."
        )
    raise DataError(f"{says} For figures use surestep.losses.mse() or huber().")


def check_signs(targets: Tensor, called: str) -> None:
    """Check that targets are -1 or 1.

    Raises:
        DataError: they are not.
    """
    if not bool(((targets == -1) | (targets == 1)).all()):
        raise DataError(
            f"The targets run from {float(targets.min()):g} to {float(targets.max()):g}, and "
            f"{called} takes -1 and 1. Where they are 0 and 1, use 2 * targets - 1."
        )


def probabilities(outputs: Tensor, called: str, instead: str) -> None:
    """Check that outputs lie between 0 and 1.

    Raises:
        TaskError: they do not.
    """
    low, high = float(outputs.min()), float(outputs.max())
    if low < 0 or high > 1:
        raise TaskError(
            f"The model's outputs run from {low:.4g} to {high:.4g}, and {called} takes "
            f"probabilities. Use {instead}, which takes logits."
        )


def log_probabilities(
    first: FirstBatch, called: str, instead: str, *, dims: tuple[int, ...] = (1,)
) -> None:
    """Check that outputs are logarithms of probabilities along one of `dims`.

    Raises:
        TaskError: they are probabilities or logits.
    """
    outputs = first.outputs.detach().float()
    if outputs.dim() <= max(dims, default=0) or not outputs.numel():
        return
    if any(bool((outputs.logsumexp(dim).abs() < 5e-2).all()) for dim in dims):
        return
    what = "probabilities" if first.squashed or float(outputs.min()) >= 0 else "logits"
    raise TaskError(
        f"The model's outputs are {what}, and {called} takes log-probabilities. Use "
        f"log_softmax as the last layer, or {instead}, which takes logits."
    )
