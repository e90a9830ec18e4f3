"""What an optimizer's state takes, counted from its options and the parameters."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from surestep.engine.optim.param_roles import hidden_matrices, sparse_embeddings
from surestep.engine.state.state import trainable_parameters

Options = Mapping[str, Any]
COUNT = 4  # bytes of a step count, and of what else is one number for each parameter
BLOCK = 256  # of bitsandbytes: values that share a scale, and the length of a table of levels

# As many tensors of the parameter's size and type, and as many single numbers.
SLOTS: Mapping[str, Callable[[Options], tuple[int, int]]] = {
    "adadelta": lambda o: (2, 1),
    "adagrad": lambda o: (1, 1),
    "adam": lambda o: (2 + o["amsgrad"], 1),
    "adamax": lambda o: (2, 1),
    "adamw": lambda o: (2 + o.get("amsgrad", False), 1),
    "asgd": lambda o: (1, 3),
    "nadam": lambda o: (2, 2),
    "radam": lambda o: (2, 1),
    "rmsprop": lambda o: (1 + (o["momentum"] > 0) + o["centered"], 1),
    "rprop": lambda o: (2, 1),
    "sgd": lambda o: (int(o["momentum"] > 0), 0),
    "muon": lambda o: (1, 0),
    "sparse_adam": lambda o: (2, 0),
}


def state_bytes(
    name: str, options: Options, model: nn.Module, trained: Sequence[Tensor]
) -> int | None:
    """Return the bytes of the state of an optimizer; None of a custom one.

    L-BFGS's are those of a full history.
    """
    if name in ("muon", "sparse_adam"):
        names = set(hidden_matrices(model) if name == "muon" else sparse_embeddings(model))
        own = [each for key, each in trainable_parameters(model).items() if key in names]
        ids = {id(each) for each in own}
        rest = [each for each in trained if id(each) not in ids]
        return _slots(name, options, own) + _slots("adamw", {}, rest)
    if name == "adafactor":
        return sum(map(_adafactor, trained))
    if name == "lbfgs":
        # The direction, the last gradient, and a step and a difference for each move remembered.
        vectors = 2 + 2 * int(options["history_size"])
        return vectors * sum(map(_bytes, trained)) + 2 * int(options["history_size"]) * COUNT
    if name == "adamw8bit":
        return _adamw8bit(options, trained)
    if name not in SLOTS:
        return None
    return _slots(name, options, trained)


def _slots(name: str, options: Options, parameters: Sequence[Tensor]) -> int:
    tensors, numbers = SLOTS[name](options)
    return tensors * sum(map(_bytes, parameters)) + numbers * COUNT * len(parameters)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _adafactor(parameter: Tensor) -> int:
    """A row and a column of each matrix; of what is none, everything."""
    shape = parameter.shape
    values = parameter.numel()
    if len(shape) > 1:
        values = values // shape[-1] + values // shape[-2]
    return values * parameter.element_size() + COUNT


def _adamw8bit(options: Options, parameters: Sequence[Tensor]) -> int:
    """Two bytes for each value, a scale for each block, and two tables of levels for all."""
    large = [each.numel() for each in parameters if each.numel() >= options["min_8bit_size"]]
    small = [each.numel() for each in parameters if each.numel() < options["min_8bit_size"]]
    scales = sum(2 * 4 * math.ceil(count / BLOCK) for count in large)
    return 2 * sum(large) + scales + 2 * 4 * BLOCK * bool(large) + 2 * 4 * sum(small)
