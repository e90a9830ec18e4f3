"""The sizes of tensors, as far as the source shows them.

A shape is a tuple of sizes, of which None is not known. No shape is given if not even the number of
dimensions is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from surestep.doctor.source.loaders import find_loader_call, gives_batches
from surestep.doctor.source.training import is_made_by, option_of, options_of, tensor_of
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Element,
    Item,
    Operation,
    Value,
    last_name,
    walk,
)

Shape = tuple[int | None, ...]

_MAX_DEPTH = 30
_MAX_VALUES = 300  # that one shape depends on
_CREATIONS = frozenset("randn rand zeros ones empty full randint normal".split())
_MIXES = frozenset(
    "max min amax amin argmax argmin mean sum prod norm std var median mode quantile sort argsort "
    "topk unique cumsum cumprod flip roll logsumexp softmax nanmean nansum nanstd ptp".split()
)
_MOST_PARTS = 50  # of an expression
_RANGES = frozenset("arange linspace randperm".split())
_COPIES = frozenset(("tensor", "as_tensor", "from_numpy", "FloatTensor", "Tensor", "LongTensor"))
KEEPS_SHAPE = frozenset(
    "to float double half bfloat16 long int bool type type_as cuda cpu clone detach contiguous "
    "requires_grad_ astype copy numpy relu leaky_relu gelu elu silu tanh sigmoid softmax "
    "log_softmax dropout exp log sqrt abs round clamp clip".split()
)
KEEPING_MODULES = frozenset(
    "ReLU LeakyReLU GELU ELU SiLU Tanh Sigmoid Softmax LogSoftmax Softplus Dropout BatchNorm1d "
    "LayerNorm RMSNorm Identity".split()
)
_REDUCTIONS = frozenset("sum mean amax amin argmax argmin prod std var".split())
_ARITHMETIC = frozenset("+ - * / // % ** == != < <= > >= & | ^".split())
_DATASETS = {  # number of samples for training, and for testing
    "MNIST": (60_000, 10_000),
    "FashionMNIST": (60_000, 10_000),
    "KMNIST": (60_000, 10_000),
    "CIFAR10": (50_000, 10_000),
    "CIFAR100": (50_000, 10_000),
}


def shape_of(value: Value | None) -> Shape | None:
    """Return the shape of a tensor or an array; None if its number of dimensions is not certain."""
    return _shape(value, _Search())


def dim_of(call: Call, position: int = 0) -> Value | None:
    """Return the dimension that a function or a method of torch or NumPy is given.

    Args:
        call: such as `x.mean(1)` or `np.mean(x, axis=1)`.
        position: of the dimension among the arguments that follow the tensor.
    """
    return call.keywords.get("axis") or option_of(call, "dim", position)


def mixes_samples(call: Call) -> bool | None:
    """Return whether a function or a method is over the first dimension, that of the samples.

    Such are the mean, the order and the softmax of samples. It is False for functions of one
    sample, and for an unknown dimension; None if all dimensions are mixed, as none is given.
    """
    if call.name not in _MIXES:
        return False
    dim, source = dim_of(call), tensor_of(call)
    if dim is None:  # the statistics of a table of pandas are those of its columns
        parts = [] if source is None else list(walk(source, _MOST_PARTS))
        is_array = any(last_name(part) in ("values", "to_numpy") for part in parts)
        return True if not is_array and any(is_made_by(p, "pandas.") for p in parts) else None
    dims = dim.elements if isinstance(dim, Collection) else [dim]
    return any(isinstance(d, Constant) and d.value == 0 for d in dims)


def count_samples(dataset: Value | None) -> int | None:
    """Return how many samples a dataset has; None if that is not certain."""
    match options_of(dataset):
        case (Call(path="torch.utils.data.TensorDataset") as made,) if made.args:
            shape = shape_of(made.args[0])
            return shape[0] if shape else None
        case (Call(path=path) as made,) if path.startswith("torchvision.datasets."):
            is_training = made.argument(1, "train")
            if made.name not in _DATASETS or not isinstance(is_training, Constant | None):
                return None
            return _DATASETS[made.name][0 if is_training is None or is_training.value else 1]
    return None


@dataclass
class _Search:
    """The shapes that are found already, and how deep the search is."""

    known: dict[int, Shape | None] = field(default_factory=dict)
    depth: int = 0


def _shape(value: Value | None, search: _Search) -> Shape | None:
    options = (value,) if isinstance(value, Call) else options_of(value)
    if not options or search.depth > _MAX_DEPTH or len(search.known) > _MAX_VALUES:
        return None
    if id(value) not in search.known:
        search.known[id(value)] = None
        search.depth += 1
        shapes = {_shape_of_one(option, search) for option in options}
        search.depth -= 1
        search.known[id(value)] = shapes.pop() if len(shapes) == 1 else None
    return search.known[id(value)]


def _shape_of_one(value: Value, search: _Search) -> Shape | None:
    match value:
        case Constant(value=bool() | int() | float()):
            return ()
        case Call():
            return _shape_of_call(value, search)
        case Operation(operator=operator, operands=(left, right)) if operator in _ARITHMETIC:
            return _broadcast(_shape(left, search), _shape(right, search))
        case Operation(operator="-" | "~" | "not", operands=(only,)):
            return _shape(only, search)
        case Element(of=of):
            shape = _shape(of, search)
            return shape[1:] if shape else None
        case Attribute(base=base, name="data" | "values"):
            return _column(base) if value.name == "values" else _shape(base, search)
        case Item(base=base, index=index):
            return _shape_of_item(base, index, search)
    return None


def _column(value: Value) -> Shape | None:
    """Return the shape of a column of a data frame; None for anything else."""
    match value:
        case Item(index=Constant(value=str())):
            return (None,)
    return None


def _broadcast(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None:
        return None
    length = max(len(a), len(b))
    pairs = zip((1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b, strict=True)
    return tuple(y if x == 1 else x if y == 1 or x == y else None for x, y in pairs)


def _shape_of_call(call: Call, search: _Search) -> Shape | None:
    if call.result is not None:
        return _shape(call.result, search)
    if call.path == "()":
        return _apply(call.receiver, _shape(call.argument(0, "input"), search), search)
    is_torch = call.path.startswith("torch.")
    if is_torch and call.name in _CREATIONS:
        return _created(call)
    if is_torch and call.name in _RANGES:
        only = call.args[0] if call.name != "linspace" and len(call.args) == 1 else None
        return (_size(only),)
    if call.path.startswith(("torch.", "numpy.")) and call.name in {*_COPIES, "array", "asarray"}:
        return _copied(call.argument(0, "data"), search)
    if call.path == ".to_numpy":
        return None if call.receiver is None else _column(call.receiver)
    if not call.is_method and not is_torch:
        return None
    shape = _shape(tensor_of(call), search)
    if shape is None and call.name not in ("view", "reshape"):
        return None
    arguments = call.args if call.is_method else call.args[1:]
    return _after_method(call, shape or (), arguments)


def _created(call: Call) -> Shape | None:
    size = call.keywords.get("size")
    if size is not None:
        return _sizes((size,))
    if call.name in ("randint", "full", "normal"):
        lists = [arg for arg in call.args if isinstance(arg, Collection)]
        return _sizes((lists[-1],)) if lists else None
    return _sizes(call.args)


def _copied(value: Value | None, search: _Search) -> Shape | None:
    if isinstance(value, Collection):
        if value.keys or not value.elements:
            return None
        inner = _copied(value.elements[0], search)
        size = len(value.elements) if value.is_complete else None
        return None if inner is None else (size, *inner)
    return _shape(value, search)


def _sizes(args: Sequence[Value]) -> Shape | None:
    if len(args) == 1 and isinstance(args[0], Collection):
        if not args[0].is_complete:
            return None
        args = args[0].elements
    if any(isinstance(arg, Operation) and arg.operator == "*args" for arg in args):
        return None
    if len(args) == 1 and not isinstance(args[0], (Constant, Operation)):
        is_number = isinstance(args[0], Call) and args[0].path == "len"
        return (None,) if is_number else None  # a name may be that of a tuple
    return tuple(map(_size, args))


def _size(value: Value | None) -> int | None:
    known = value.value if isinstance(value, Constant) else None
    return known if isinstance(known, int) and known >= 0 else None


def _after_method(call: Call, shape: Shape, arguments: tuple[Value, ...]) -> Shape | None:
    name = call.name
    if name in KEEPS_SHAPE:
        return shape
    if name in ("view", "reshape"):
        return _sizes(arguments)
    if name == "flatten":
        start = option_of(call, "start_dim")
        is_one = isinstance(start, Constant) and start.value == 1
        return (None,) if start is None else (shape[0], None) if is_one and len(shape) > 1 else None
    if name in ("squeeze", "unsqueeze") or name in _REDUCTIONS:
        return _change_dimension(call, shape, arguments)
    return None


def _change_dimension(call: Call, shape: Shape, arguments: tuple[Value, ...]) -> Shape | None:
    given = arguments[0] if arguments else call.keywords.get("dim")
    if given is None:
        if call.name == "squeeze":
            return None if None in shape else tuple(size for size in shape if size != 1)
        return () if call.name in _REDUCTIONS else None
    if not isinstance(given, Constant) or type(given.value) is not int:
        return None
    length = len(shape) + (call.name == "unsqueeze")
    at = given.value + length if given.value < 0 else given.value
    if not 0 <= at < length:
        return None
    before, after = shape[:at], shape[at + 1 :]
    if call.name == "unsqueeze":
        return (*before, 1, *shape[at:])
    if call.name == "squeeze":
        return None if shape[at] is None else (*before, *after) if shape[at] == 1 else shape
    keeps = call.keywords.get("keepdim", arguments[1] if len(arguments) > 1 else None)
    if keeps is None:
        return (*before, *after)
    is_kept = isinstance(keeps, Constant) and keeps.value is True
    return (*before, 1, *after) if is_kept else None


def _shape_of_item(base: Value, index: Value, search: _Search) -> Shape | None:
    number = index.value if isinstance(index, Constant) else None
    if isinstance(base, Element) and type(number) is int:
        return _shape_of_batch(base.of, number, search)
    if isinstance(base, Call) and type(number) is int:
        if base.path == "sklearn.model_selection.train_test_split":
            shape = _shape(base.args[number // 2], search) if number // 2 < len(base.args) else None
            return (None, *shape[1:]) if shape else None
        if base.path == "sklearn.datasets.make_regression" and "n_targets" not in base.keywords:
            return (None, None) if number == 0 else (None,)
    shape = _shape(base, search)
    return None if shape is None else _indexed(shape, index)


def _indexed(shape: Shape, index: Value) -> Shape | None:
    parts = index.elements if isinstance(index, Collection) else [index]
    found: list[int | None] = []
    at = 0
    for part in parts:
        if isinstance(part, Constant) and part.value is None:
            found.append(1)
            continue
        if at >= len(shape):
            return None
        if isinstance(part, Operation) and part.operator == ":":
            found.append(None if part.operands else shape[at])
        elif not isinstance(part, Constant) or type(part.value) is not int:
            return None
        at += 1
    return (*found, *shape[at:])


def _shape_of_batch(iterated: Value, position: int, search: _Search) -> Shape | None:
    """Return the shape of a part of a batch of a DataLoader over a TensorDataset."""
    loader = find_loader_call(iterated)
    if loader is None or not gives_batches(loader):
        return None
    if "collate_fn" in loader.keywords or loader.has_unknown_arguments:
        return None
    match options_of(loader.argument(0, "dataset")):
        case (Call(path="torch.utils.data.TensorDataset", args=tensors),):
            shape = _shape(tensors[position], search) if position < len(tensors) else None
            return (None, *shape[1:]) if shape else None
    return None


def _apply(module: Value | None, shape: Shape | None, search: _Search) -> Shape | None:
    """Return the shape of what a module of torch returns."""
    match options_of(module):
        case (Call() as made,) if made.path.startswith("torch.nn."):
            pass
        case _:
            return None
    if shape is None or search.depth > _MAX_DEPTH:
        return None
    if made.name == "Sequential":
        if made.keywords or any(not isinstance(part, Call) for part in made.args):
            return None
        for part in made.args:
            shape = _apply(part, shape, search)
        return shape
    if made.name in KEEPING_MODULES:
        return shape
    change = _MODULES.get(made.name)
    return None if change is None or not shape else change(made, shape)


_MODULES: dict[str, Callable[[Call, Shape], Shape | None]] = {
    "Linear": lambda made, shape: (*shape[:-1], _size(made.argument(1, "out_features"))),
    "Embedding": lambda made, shape: (*shape, _size(made.argument(1, "embedding_dim"))),
    "Flatten": lambda made, shape: (shape[0], None) if len(shape) > 1 and not made.inputs else None,
}
