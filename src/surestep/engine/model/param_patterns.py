"""The names that patterns are matched with: of parameters, of modules, and of types."""

from collections.abc import Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate

from torch import Tensor, nn

from surestep.base.errors import ConfigError, suggest_names


def plain_name(name: str) -> str:
    """Return a name without the prefix of torch.compile."""
    return name.replace("_orig_mod.", "").removesuffix("._orig_mod")


def unwrap_module(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile wrapped."""
    while "_orig_mod" in module._modules:
        module = module.get_submodule("_orig_mod")
    return module


def match_params(pattern: str, model: nn.Module) -> set[int]:
    """Return the ids of the parameters and buffers that a pattern matches.

    A module's name matches everything in it, and each name of a shared tensor matches it. A type
    is matched by its name and those of its base classes.

    Raises:
        ConfigError: the pattern matches nothing.
    """
    if pattern.startswith("type:"):
        kind = pattern.removeprefix("type:")
        modules = [
            module
            for module in model.modules()
            if any(fnmatchcase(name, kind) for name in _types(module))
        ]
        found = {id(tensor) for module in modules for tensor in _tensors(module)}
    else:
        modules = []
        found = {id(tensor) for name, tensor in _named(model) if _matches(name, pattern)}
    if found:
        return found
    if modules:
        raise ConfigError(
            f"optim.groups: {pattern!r} matches {len(modules)} modules, and they have no "
            "parameters. Leave it out."
        )
    known = _known(model, pattern)
    # A large model has thousands of names: without a similar one, list its top modules.
    close = get_close_matches(pattern, known, n=3) or [name for name in known if "." not in name]
    what = "type of module" if pattern.startswith("type:") else "parameter or module"
    raise ConfigError(
        f"optim.groups: {pattern!r} matches no {what} of the model. {suggest_names(pattern, close)}"
    )


def _types(module: nn.Module) -> list[str]:
    kinds = type(module).__mro__
    return [kind.__name__ for kind in kinds[: kinds.index(nn.Module)]]


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield plain_name(name), parameter
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield plain_name(name), buffer


def _matches(name: str, pattern: str) -> bool:
    """Return whether the pattern matches a tensor's name or that of a module around it."""
    parts = accumulate(name.split("."), lambda before, part: f"{before}.{part}")
    return any(fnmatchcase(part, pattern) for part in parts)


def _known(model: nn.Module, pattern: str) -> list[str]:
    if pattern.startswith("type:"):
        holding = (part for part in model.modules() if next(_tensors(part), None) is not None)
        return list(dict.fromkeys(f"type:{type(part).__name__}" for part in holding))
    names = [plain_name(name) for name, _ in model.named_parameters()]
    parts = [
        part
        for name in names
        for part in accumulate(name.split("."), lambda before, part: f"{before}.{part}")
    ]
    known = list(dict.fromkeys(parts))
    wild = "*" in pattern and [f"{name}.*" for name in known if name not in names]
    return [*(wild or ()), *known]
