"""Which modules FSDP gathers one at a time: the blocks of a model.

The parameters of a block are gathered right before its forward and freed after it. The parameters
outside all blocks are gathered with the model itself.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from surestep.base.errors import suggest_names
from surestep.engine.model.layers import blocks_of
from surestep.engine.plan.specs import WrapUnits

SHARE = 0.1  # of all parameters: the size of a block if the model repeats nothing
_NO_FORWARD = (nn.ModuleList, nn.ModuleDict)


def select_wrap_units(model: nn.Module, choice: str) -> WrapUnits:
    """Choose the blocks of a model.

    Args:
        model: not changed.
        choice: "auto" for modules that are repeated; "class NAMES" for modules of these classes;
            "size N" for the smallest modules with N parameters that no inner block has; or "name
            PATTERNS" for the outermost modules whose names match; * matches dots too.
    """
    if problem := _find_unshardable(model):
        return WrapUnits(problem=problem)
    candidates = _candidates(model)
    chosen, text = _choose(model, candidates, choice)
    tied = [name for name in chosen if _shares_weights(model, candidates[name])]
    names = tuple(name for name in chosen if name not in tied)
    problem = "" if choice == "auto" else _find_unmatched(model, candidates, choice, names)
    if tied:
        text += f"; {', '.join(tied)} share a weight with others and are gathered with the model"
    if not names:
        return WrapUnits((), "no part is large enough: the full model at once", problem)
    return WrapUnits(names, f"{len(names)} {text}, gathered one at a time", problem)


def _choose(
    model: nn.Module, candidates: dict[str, nn.Module], choice: str
) -> tuple[list[str], str]:
    """Return the chosen names, and what they are."""
    kind, _, words = choice.partition(" ")
    if kind == "class":
        classes = words.split()
        names = [name for name, module in candidates.items() if type(module).__name__ in classes]
        return names, f"of class {words}"
    if kind == "name":
        matching = {name for item in words.split() for name in _outermost(candidates, item)}
        return [name for name in candidates if name in matching], f"named {words}"
    if kind == "size":
        size = float(words)
        return _of_size(candidates, size), f"of at least {size:,.0f} parameters"
    repeated = [name for name in blocks_of(model) if name in candidates]
    if len(repeated) > 1:
        return repeated, "blocks that are repeated in the model"
    size = SHARE * sum(parameter.numel() for parameter in model.parameters())
    text = f"parts with at least a tenth of the parameters ({size:,.0f})"
    return _of_size(candidates, size), text


def _outermost(candidates: dict[str, nn.Module], pattern: str) -> list[str]:
    """Return the names that match and are not inside a module that matches."""
    names = [name for name in candidates if fnmatchcase(name, pattern)]
    return [name for name in names if not any(name.startswith(f"{item}.") for item in names)]


def _candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that can be gathered by themselves, by name.

    They have parameters and are called. A list of modules is not; nor are the parts of torch's
    attention, which uses only their weights.
    """
    inside = {
        id(part)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        for part in list(module.modules())[1:]
    }
    return {
        name: module
        for name, module in model.named_modules()
        if name
        and not isinstance(module, _NO_FORWARD)
        and id(module) not in inside
        and any(True for _ in module.parameters())
    }


def _of_size(candidates: dict[str, nn.Module], size: float) -> list[str]:
    """Choose, inner modules first, those with `size` parameters besides those of inner blocks."""
    chosen: list[str] = []
    taken: set[int] = set()
    for name, module in reversed(candidates.items()):
        own = {
            id(parameter): parameter.numel()
            for parameter in module.parameters()
            if id(parameter) not in taken
        }
        if sum(own.values()) >= size:
            chosen.insert(0, name)
            taken |= set(own)
    return chosen


def _shares_weights(model: nn.Module, block: nn.Module) -> bool:
    """Return whether a parameter of a block also belongs to a module outside of it."""
    inside = {id(parameter) for parameter in block.parameters()}
    within = {id(module) for module in block.modules()}
    return any(
        id(parameter) in inside
        for module in model.modules()
        if id(module) not in within
        for parameter in module.parameters(recurse=False)
    )


def _find_unmatched(
    model: nn.Module, candidates: dict[str, nn.Module], choice: str, names: Sequence[str]
) -> str:
    """Return what is wrong with a choice; "" if each of its words matches a part of the model."""
    kind, _, words = choice.partition(" ")
    classes = list(dict.fromkeys(type(module).__name__ for module in candidates.values()))
    for word in words.split() if kind in ("class", "name") else ():
        if not _choose(model, candidates, f"{kind} {word}")[0]:
            near = suggest_names(word, candidates if kind == "name" else classes)
            break
    else:
        if names:
            return ""
        word, near = words, "What shares a weight is gathered with the model."
    counts = [type(module).__name__ for module in candidates.values()]
    known = ", ".join(f"{name} ({counts.count(name)})" for name in classes[:12])
    return (
        f"parallel.wrap_policy={choice!r}: {word!r} matches no part of the model. {near} Its "
        f"classes are: {known or 'only its own'}. Set parallel.wrap_policy='class NAME'."
    )


def _find_unshardable(model: nn.Module) -> str:
    """Return which parameter cannot be sharded, and what to do; "" if all can."""
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            why = "has no shape before the first batch. Give its layer the size"
        elif not parameter.dim():
            why = "has no dimension, and FSDP shards the first. Give it one: torch.ones(1)"
        elif parameter.is_complex():
            why = "is complex. Store it as real numbers (torch.view_as_real)"
        elif not parameter.is_contiguous():
            why = "is not contiguous. Use .contiguous()"
        else:
            continue
        return f"{name} {why}, or use parallel.strategy='ddp'."
    return ""


def in_order(model: nn.Module, names: Sequence[str]) -> Iterator[nn.Module]:
    """Yield the modules of these names, inner ones before those around them."""
    yield from map(model.get_submodule, reversed(names))
