"""The size of an optimizer's state, computed from its options and the parameters."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from surestep.engine.batch import tensor_bytes
from surestep.engine.optim.param_roles import hidden_matrices, sparse_embeddings
from surestep.engine.state.state import trainable_parameters

Options = Mapping[str, Any]
COUNT = 4  # bytes of a step count, or of another number per parameter
BLOCK = 256  # of bitsandbytes: values that share a scale, and the length of a table of levels

# How many tensors of the parameter's size and type, and how many single numbers.
SLOTS: Mapping[str, Callable[[Options], tuple[int, int]]] = {
    "adadelta": lambda options: (2, 1),
    "adagrad": lambda options: (1, 1),
    "adam": lambda options: (2 + options["amsgrad"], 1),
    "adamax": lambda options: (2, 1),
    "adamw": lambda options: (2 + options.get("amsgrad", False), 1),
    "asgd": lambda options: (1, 3),
    "nadam": lambda options: (2, 2),
    "radam": lambda options: (2, 1),
    "rmsprop": lambda options: (1 + (options["momentum"] > 0) + options["centered"], 1),
    "rprop": lambda options: (2, 1),
    "sgd": lambda options: (int(options["momentum"] > 0), 0),
    "muon": lambda options: (1, 0),
    "sparse_adam": lambda options: (2, 0),
}


def state_bytes(
    name: str, options: Options, model: nn.Module, trained: Sequence[Tensor]
) -> int | None:
    """Return the bytes of the state of an optimizer; None of a custom one.

    L-BFGS's are those of a full history.
    """
    if name in ("muon", "sparse_adam"):
        names = set(hidden_matrices(model) if name == "muon" else sparse_embeddings(model))
        own = [weight for key, weight in trainable_parameters(model).items() if key in names]
        ids = {id(weight) for weight in own}
        rest = [weight for weight in trained if id(weight) not in ids]
        return _slots(name, options, own) + _slots("adamw", {}, rest)
    if name == "adafactor":
        return sum(map(_adafactor, trained))
    if name == "lbfgs":
        # The direction, the last gradient, and a step and a difference for each remembered update.
        vectors = 2 + 2 * int(options["history_size"])
        return vectors * tensor_bytes(trained) + 2 * int(options["history_size"]) * COUNT
    if name == "adamw8bit":
        return _adamw8bit(options, trained)
    if name not in SLOTS:
        return None
    return _slots(name, options, trained)


def _slots(name: str, options: Options, parameters: Sequence[Tensor]) -> int:
    tensors, numbers = SLOTS[name](options)
    return tensors * tensor_bytes(parameters) + numbers * COUNT * len(parameters)


def _adafactor(parameter: Tensor) -> int:
    """A row and a column of each matrix, and everything of other tensors."""
    shape = parameter.shape
    values = parameter.numel()
    if len(shape) > 1:
        values = values // shape[-1] + values // shape[-2]
    return values * parameter.element_size() + COUNT


def _adamw8bit(options: Options, parameters: Sequence[Tensor]) -> int:
    """Two bytes per value, a scale per block, and two tables of levels."""
    large = [weight.numel() for weight in parameters if weight.numel() >= options["min_8bit_size"]]
    small = [weight.numel() for weight in parameters if weight.numel() < options["min_8bit_size"]]
    scales = sum(2 * 4 * math.ceil(count / BLOCK) for count in large)
    return 2 * sum(large) + scales + 2 * 4 * BLOCK * bool(large) + 2 * 4 * sum(small)
