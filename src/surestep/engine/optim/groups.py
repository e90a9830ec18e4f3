"""Parameter groups: which parameters are trained together, with or without decay."""

from collections.abc import Iterator

import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.engine.state import named_trainable
from surestep.engine.task import ParameterGroups

# Decay pulls towards zero, which is no natural value for a scale, a shift or a table row that is
# seldom looked up. Source: https://arxiv.org/abs/1711.05101, https://arxiv.org/abs/2003.02436
WITHOUT_DECAY = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation, synchronised or lazy
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.Embedding,
    nn.EmbeddingBag,
)


def without_decay(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that weight decay leaves alone.

    Those of normalisation and embedding modules, by their type, and everything with fewer than two
    dimensions elsewhere: biases, scales, gates. A weight shared with an embedding is one of its.
    """
    kept = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, WITHOUT_DECAY)
        for parameter in module.parameters(recurse=False)
    }
    return kept | {id(parameter) for parameter in model.parameters() if parameter.dim() < 2}


def parameter_groups(model: nn.Module, weight_decay: float | None) -> ParameterGroups:
    """Return the trained parameters as groups: with decay, and without.

    Args:
        model: whose parameters.
        weight_decay: of the first group; None leaves it to the optimizer's own default.

    Raises:
        TaskError: nothing is trained.
    """
    trained = named_trainable(model)
    if not trained:
        raise TaskError(
            "No parameter of the model is trained: all have requires_grad=False, or there are "
            "none. Set requires_grad_(True) on the part that should learn."
        )
    kept = without_decay(model)
    first = [each for each in trained.values() if id(each) not in kept]
    second = [each for each in trained.values() if id(each) in kept]
    decay = {} if weight_decay is None else {"weight_decay": weight_decay}
    groups: ParameterGroups = [{"params": first, **decay}, {"params": second, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def check_groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Check that each trained parameter is in one group and that no frozen one is in any.

    Raises:
        TaskError: with the names of those that are not.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TaskError(
            f"Task(optimizer=...) returned a {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer."
        )
    held = [id(parameter) for parameter in parameters_of(optimizer)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = named_trainable(model)
    missing = [name for name, each in trained.items() if id(each) not in held]
    twice = [name for name, each in trained.items() if held.count(id(each)) > 1]
    trained_ids = {id(each) for each in trained.values()}
    foreign = [names.get(each, "a tensor that is not the model's") for each in held]
    foreign = [name for name, each in zip(foreign, held, strict=True) if each not in trained_ids]
    for found, what, mend in (
        (missing, "in no group of the optimizer and would never be trained", "Add them"),
        (twice, "in two groups of the optimizer and would be moved twice", "Keep one"),
        (foreign, "frozen or foreign, and in the optimizer all the same", "Leave them out"),
    ):
        if found:
            raise TaskError(f"These parameters are {what}: {_some(found)}. {mend}.")


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the parameters that an optimizer holds."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _some(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
