"""A copy of a model without its weights, from which another thread builds the trained model."""

import copy

import torch
from torch import nn

from surestep.base.errors import CheckpointError
from surestep.record.run import Run


class ModelTemplate:
    """The modules and buffers of a model, copied before it is wrapped and trained.

    It takes no memory for parameters, and shares nothing with the model that trains.

    Args:
        model: as it was built.
    """

    def __init__(self, model: nn.Module) -> None:
        shapes = {id(p): nn.Parameter(p.detach().to("meta"), False) for p in model.parameters()}
        self._problem: Exception | None = None
        self._modules = nn.Module()
        try:
            self._modules = copy.deepcopy(model, shapes)
        except Exception as error:  # of an attribute of the user's model
            self._problem = error

    def load(self, run: Run) -> nn.Module:
        """Return a new model in eval mode, on the CPU, with the weights of the best checkpoint.

        Raises:
            CheckpointError: there is none, it leaves out frozen parameters, or the model cannot be
                copied.
        """
        if self._problem is not None:
            kind = type(self._problem).__name__
            raise CheckpointError(f"the model cannot be copied: {kind}: {self._problem}")
        chosen = run.choose("best")
        if chosen.needs_base:
            raise CheckpointError(f"{chosen.saved.path} leaves out the frozen parameters.")
        tensors = {
            id(p): nn.Parameter(torch.empty_like(p, device="cpu"), requires_grad=False)
            for p in self._modules.parameters()
        }
        model = copy.deepcopy(self._modules, tensors).to("cpu").eval()
        chosen.load(model)
        return model
