"""The model and the loss as they are given, before there is a batch."""

from collections.abc import Mapping

from torch import nn

from surestep.base.errors import TaskError


def check_model(model: nn.Module) -> None:
    """Check that all parameters are on one device."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise TaskError(
            f"The model's parameters are on several devices: {', '.join(devices)}. Build it on one "
            "and set device= in the Config."
        )


def check_teacher(teacher: nn.Module | None, model: nn.Module) -> None:
    """Check that a teacher shares no parameters with the model, which training would update."""
    held = {id(parameter) for parameter in model.parameters()}
    shared = [] if teacher is None else [n for n, p in teacher.named_parameters() if id(p) in held]
    if shared:
        raise TaskError(
            f"The teacher shares parameters with the model, and would be trained with it: "
            f"{', '.join(shared[:3])}. Pass a copy: copy.deepcopy(model)."
        )


def check_loss(loss: object) -> None:
    """Check that the loss has no parameters: no optimizer updates and no checkpoint saves them."""
    for entry in loss.values() if isinstance(loss, Mapping) else ():
        check_loss(entry)
    if isinstance(loss, nn.Module):
        names = [name for name, parameter in loss.named_parameters() if parameter.requires_grad]
        if names:
            raise TaskError(
                f"The loss has parameters, which nothing would train: "
                f"{', '.join(names)}. Make them a part of the model, and let it return what the "
                "loss needs."
            )
