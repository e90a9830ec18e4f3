"""Which modules of a model are gathered one at a time when its parameters are cut over ranks.

A block is gathered right before its forward and let go after it. What lies in no block is the rest,
which is gathered with the model itself.
"""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from surestep.base.errors import suggest_names
from surestep.engine.model.layers import blocks_of
from surestep.engine.model.param_patterns import plain_name
from surestep.engine.plan.specs import WrapUnits

SHARE = 0.1  # of all parameters: so large is a block of a model that repeats nothing
_NO_FORWARD = (nn.ModuleList, nn.ModuleDict)


def select_wrap_units(model: nn.Module, choice: str) -> WrapUnits:
    """Choose the blocks of a model.

    Args:
        model: whose modules; nothing is changed.
        choice: "auto" for what is repeated in it; "class NAMES" for modules of these classes;
            "size N" for the smallest modules with N parameters that no inner block holds; or
            "name PATTERNS" for modules whose names match. Of what one pattern matches those count
            that lie in no other; its stars match dots too.
    """
    problem = _unfit(model)
    if problem:
        return WrapUnits(problem=problem)
    able = _able(model)
    wanted, text = _wanted(model, able, choice)
    tied = [name for name in wanted if _shares(model, able[name])]
    names = tuple(name for name in wanted if name not in tied)
    if choice != "auto":
        problem = _wrong(model, choice, names, tied)
    if tied:
        text += f"; {', '.join(tied)} share a weight with others and stay with the rest"
    if not names:
        return WrapUnits((), "none of its parts is large enough: the whole at once", problem)
    return WrapUnits(names, f"{len(names)} {text}, gathered one at a time", problem)


def _wanted(model: nn.Module, able: dict[str, nn.Module], choice: str) -> tuple[list[str], str]:
    """Return the names that are chosen, and what they are."""
    how, _, words = choice.partition(" ")
    if how == "class":
        return [
            name for name, each in able.items() if type(each).__name__ in words.split()
        ], f"of class {words}"
    if how == "name":
        found = {name for each in words.split() for name in _outermost(able, each)}
        return [name for name in able if name in found], f"named {words}"
    if how == "size":
        return _of_size(able, float(words)), f"of at least {float(words):,.0f} parameters"
    repeated = [name for name in blocks_of(model) if name in able]
    if len(repeated) > 1:
        return repeated, "blocks that are repeated in the model"
    size = SHARE * sum(each.numel() for each in model.parameters())
    return _of_size(able, size), f"parts with at least a tenth of the parameters ({size:,.0f})"


def _outermost(able: dict[str, nn.Module], pattern: str) -> list[str]:
    """Return the names that a pattern matches and that lie in none which it matches too."""
    found = [name for name in able if fnmatchcase(name, pattern)]
    return [name for name in found if not any(name.startswith(f"{each}.") for each in found)]


def _able(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that can be gathered by themselves, by name.

    They have parameters and are called: a list of modules is not, nor are the parts of torch's
    attention, which takes their weights only.
    """
    inside = {
        id(part)
        for each in model.modules()
        if isinstance(each, nn.MultiheadAttention)
        for part in list(each.modules())[1:]
    }
    return {
        plain_name(name): module
        for name, module in model.named_modules()
        if name
        and not isinstance(module, _NO_FORWARD)
        and id(module) not in inside
        and any(True for _ in module.parameters())
    }


def _of_size(able: dict[str, nn.Module], size: float) -> list[str]:
    """Choose from the inside out: what has so many parameters beside those of its inner blocks."""
    chosen: list[str] = []
    taken: set[int] = set()
    for name, module in reversed(able.items()):
        own = {id(each): each.numel() for each in module.parameters() if id(each) not in taken}
        if sum(own.values()) >= size:
            chosen.insert(0, name)
            taken |= set(own)
    return chosen


def _shares(model: nn.Module, block: nn.Module) -> bool:
    """Say whether a parameter of a block is another module's too, which lies outside of it."""
    inside = {id(each) for each in block.parameters()}
    within = {id(each) for each in block.modules()}
    return any(
        id(parameter) in inside
        for module in model.modules()
        if id(module) not in within
        for parameter in module.parameters(recurse=False)
    )


def _wrong(model: nn.Module, choice: str, names: Sequence[str], tied: Sequence[str]) -> str:
    """Say why a choice divides nothing; empty where it does."""
    classes = ", ".join(_classes(model)) or "none but the model's own"
    advice = f"Its classes are: {classes}. Say parallel.wrap_policy='class ...' with one of them."
    if tied and not names:
        return (
            f"parallel.wrap_policy={choice!r}: {', '.join(tied)} shares a weight with another "
            "part, and "
            f"what is shared is gathered with the model. {advice}"
        )
    unmatched = _unmatched(model, choice)
    if unmatched:
        return f"parallel.wrap_policy={choice!r}: {unmatched} {advice}"
    if not names:
        return f"parallel.wrap_policy={choice!r} matches no part of the model. {advice}"
    whole_size = sum(each.numel() for each in model.parameters())
    largest = max(
        sum(each.numel() for each in model.get_submodule(name).parameters()) for name in names
    )
    if len(names) == 1 and largest == whole_size:
        return (
            f"parallel.wrap_policy={choice!r} matches {names[0]}, which is the whole model. "
            f"{advice}"
        )
    return ""


def _unmatched(model: nn.Module, choice: str) -> str:
    """Say which word of a choice matches nothing, with those near it; empty where all do."""
    how, _, words = choice.partition(" ")
    able = _able(model)
    for word in words.split() if how in ("class", "name") else ():
        if not _wanted(model, able, f"{how} {word}")[0]:
            own = type(model).__name__
            if how == "class" and word == own:
                return f"{word!r} matches only the whole {own}."
            classes = dict.fromkeys(type(each).__name__ for each in able.values())
            known = suggest_names(word, able if how == "name" else classes)
            return f"{word!r} matches no part of the model. {known}"
    return ""


def _classes(model: nn.Module) -> list[str]:
    """List the classes of a model's parts with how often they are there, most parameters first."""
    parts: dict[str, list[int]] = {}
    for module in _able(model).values():
        sizes = parts.setdefault(type(module).__name__, [])
        sizes.append(sum(each.numel() for each in module.parameters()))
    largest = sorted(parts, key=lambda name: -sum(parts[name]))[:12]
    return [f"{name} ({len(parts[name])})" for name in largest]


def _unfit(model: nn.Module) -> str:
    """Say which parameter cannot be cut; empty where all can."""
    for name, each in model.named_parameters():
        for unfit, why in _REASONS:
            if unfit(each):
                return f"{plain_name(name)} {why}, or say parallel.strategy='ddp'."
    return ""


_REASONS: tuple[tuple[Callable[[nn.Parameter], bool], str], ...] = (
    (
        nn.parameter.is_lazy,
        "has no shape before the first batch, and FSDP cuts it before. Give its layer the size",
    ),
    (
        lambda each: not each.dim(),
        "has no dimension, and FSDP cuts along the first. Make it of one: torch.ones(1)",
    ),
    (
        lambda each: each.is_complex(),
        "is complex, which FSDP cannot reduce. Hold it as real numbers (torch.view_as_real)",
    ),
    (
        lambda each: not each.is_contiguous(),
        "does not lie in memory in one piece, which FSDP needs. Make it so with .contiguous()",
    ),
)


def in_order(model: nn.Module, names: Sequence[str]) -> Iterator[nn.Module]:
    """Yield the modules of these names, inner ones before those around them."""
    known = {plain_name(name): module for name, module in model.named_modules()}
    for name in reversed(names):
        yield known[name]
