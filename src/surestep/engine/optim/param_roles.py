"""Which parameters are of a kind that some optimizer treats apart."""

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from surestep.engine.model.param_patterns import plain_name
from surestep.engine.state.state import trainable_parameters


def param_info(model: nn.Module) -> dict[str, Any]:
    """Return what a Plan must know of the parameters, as fields of Given."""
    trained = trainable_parameters(model)
    sparse = sparse_embeddings(model)
    return {
        "floating": not any(each.is_complex() for each in trained.values()),
        "hidden": tuple(hidden_matrices(model)),
        "sparse": tuple(sparse),
        "dense": len(sparse) < len(trained),
        "scalars": tuple(
            plain_name(name)
            for name, each in model.named_parameters()
            if not is_lazy(each) and not each.dim()
        ),
    }


def sparse_embeddings(model: nn.Module) -> list[str]:
    """Name the trained tables whose gradients are sparse: one by itself, tied to nothing dense."""
    sparse = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    return [name for name, each in trainable_parameters(model).items() if id(each) in sparse]


def hidden_matrices(model: nn.Module) -> list[str]:
    """Name the trained matrices between the first table and the last layer, which Muon moves.

    Everything of two dimensions but the tables of embeddings and the weight of the last layer:
    what `get_output_embeddings()` returns where the model has it (transformers' do), else the
    linear layer that was registered last.

    Source: https://kellerjordan.github.io/posts/muon/
    """
    kept = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    }
    last = _last_layer(model)
    if last is not None:
        kept |= {id(each) for each in last.parameters()}
    return [
        name
        for name, each in trainable_parameters(model).items()
        if each.dim() == 2 and id(each) not in kept
    ]


def _last_layer(model: nn.Module) -> nn.Module | None:
    declared = getattr(model, "get_output_embeddings", lambda: None)()
    if isinstance(declared, nn.Module):
        return declared
    linear = [each for each in model.modules() if isinstance(each, nn.Linear)]
    return linear[-1] if linear else None
