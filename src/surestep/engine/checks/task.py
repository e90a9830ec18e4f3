"""The model and the loss as they are given, before there is a batch."""

from collections.abc import Mapping

import torch
from torch import nn

from surestep.base.errors import TaskError


def check_model(model: nn.Module) -> None:
    """Check that all parameters are on one device, and that no part is a TorchScript module."""
    check_no_script(model, "model")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise TaskError(
            f"The model's parameters are on several devices: {', '.join(devices)}. Build it on one "
            "and set device= in the Config."
        )


def check_no_script(module: nn.Module, what: str) -> None:
    """Check that no part is a TorchScript module, whose buffers cannot be saved and put back."""
    for name, part in module.named_modules(prefix=what):
        if isinstance(part, torch.jit.ScriptModule):
            instead = (
                "Train the Python module, and convert it after the training: "
                "torch.jit.script(model). To train faster, set compile=True."
            )
            if what == "loss":
                instead = (
                    "Pass the Python module, or a function around it: loss=lambda outputs, "
                    "targets: scripted(outputs, targets)."
                )
            raise TaskError(
                f"{name} is a TorchScript module (torch.jit), whose buffers and attributes cannot "
                f"be saved and restored as a run needs it. {instead}"
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
        check_no_script(loss, "loss")
        names = [name for name, parameter in loss.named_parameters() if parameter.requires_grad]
        if names:
            raise TaskError(
                f"The loss has parameters, which nothing would train: "
                f"{', '.join(names)}. Make them a part of the model, and let it return what the "
                "loss needs."
            )
