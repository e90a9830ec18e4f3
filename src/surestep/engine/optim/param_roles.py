"""Which parameters some optimizer treats differently."""

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from surestep.engine.state.state import trainable_parameters


def param_info(model: nn.Module) -> dict[str, Any]:
    """Return what a Plan depends on of the parameters, as fields of TaskInfo."""
    trained = trainable_parameters(model)
    sparse = sparse_embeddings(model)
    return {
        "floating": not any(weight.is_complex() for weight in trained.values()),
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
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    return [name for name, weight in trainable_parameters(model).items() if id(weight) in sparse]


def hidden_matrices(model: nn.Module) -> list[str]:
    """Name the trained matrices between the first table and the last layer, which Muon updates.

    Everything of two dimensions but embedding tables and the weight of the last layer: what
    `get_output_embeddings()` returns if the model has it (as in transformers), else the linear
    layer that was registered last.

    Source: https://kellerjordan.github.io/posts/muon/
    """
    kept = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    last = getattr(model, "get_output_embeddings", lambda: None)()
    if not isinstance(last, nn.Module):
        last = next((m for m in reversed([*model.modules()]) if isinstance(m, nn.Linear)), None)
    if last is not None:
        kept |= {id(weight) for weight in last.parameters()}
    return [
        name
        for name, weight in trainable_parameters(model).items()
        if weight.dim() == 2 and id(weight) not in kept
    ]
