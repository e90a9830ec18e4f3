"""Which parameters some optimizer treats differently."""

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from surestep.engine.losses.base import HALF
from surestep.engine.model.parametrized import made_shapes, own_parameters
from surestep.engine.state.state import trainable_parameters


def param_info(model: nn.Module) -> dict[str, Any]:
    """Return what a Plan depends on of the parameters, as fields of TaskInfo."""
    trained = trainable_parameters(model)
    sparse = sparse_embeddings(model)
    return {
        "floating": not any(weight.is_complex() for weight in trained.values()),
        "half": any(weight.dtype in HALF for weight in trained.values()),
        "hidden": tuple(hidden_matrices(model)),
        "sparse": tuple(sparse),
        "dense": len(sparse) < len(trained),
        "scalars": tuple(
            name
            for name, weight in model.named_parameters()
            if not is_lazy(weight) and not weight.dim()
        ),
    }


def sparse_embeddings(model: nn.Module) -> list[str]:
    """Name the trained embedding tables with sparse gradients."""
    sparse = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
        for parameter in module.parameters(recurse=False)
    }
    return [name for name, weight in trainable_parameters(model).items() if id(weight) in sparse]


def hidden_matrices(model: nn.Module) -> list[str]:
    """Name the trained matrices between the first table and the last layer, which Muon updates.

    Everything of two dimensions but embedding tables and the weight of the last layer: what
    `get_output_embeddings()` returns if the model has it (as in transformers), else the linear
    layer that was registered last. A parameter that makes a tensor of a module is a matrix if it
    has the shape of that tensor: the lengths of a weight norm are none.

    Source: https://kellerjordan.github.io/posts/muon/
    """
    kept = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        for parameter in own_parameters(module)
    }
    last = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(last, nn.Module):
        last = next((m for m in reversed([*model.modules()]) if isinstance(m, nn.Linear)), None)
    if last is not None:
        kept |= {id(weight) for weight in last.parameters()}
    shapes = made_shapes(model)
    return [
        name
        for name, weight in trainable_parameters(model).items()
        if weight.dim() == 2
        and id(weight) not in kept
        and shapes.get(id(weight), weight.shape) == weight.shape
    ]
