"""How deep each parameter lies: the layers of any model, in the order of its modules.

A block, which is a module made of modules, is one layer. ModuleList, Sequential and the modules
around them are opened to find the blocks. Plain modules of a list with blocks in it, or of a model
without any, are one layer each, and normalisation belongs to the one beside it. What else stands
side by side before, between or after blocks is one layer together: the embeddings, the head. A
parameter that is shared lies where it stands first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from torch import nn

from surestep.engine.model.param_patterns import plain_name, unwrap_module

STACKS = (nn.Sequential, nn.ModuleList)
NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Layer:
    """A layer of a model, counted from 1 at the input.

    Attributes:
        index: its place.
        modules: names of what it is made of.
        parameters: all of them, frozen ones too.
    """

    index: int
    modules: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]


class _ModulePart(NamedTuple):
    name: str
    module: nn.Module
    parameters: list[nn.Parameter]
    is_block: bool
    alone: bool  # a layer of its own


def layers_of(model: nn.Module) -> tuple[Layer, ...]:
    """Return the layers of a model, from the input on; each parameter is in one."""
    seen: set[int] = set()
    pieces = []
    for piece in _pieces(unwrap_module(model), ""):
        new = [each for each in piece.parameters if id(each) not in seen]
        seen |= {id(each) for each in new}
        if new:
            pieces.append(piece._replace(parameters=new))
    return tuple(
        Layer(
            index,
            tuple(piece.name for piece in layer),
            tuple(each for piece in layer for each in piece.parameters),
        )
        for index, layer in enumerate(_runs(pieces), start=1)
    )


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a model by name, in order: what is repeated, layer by layer."""
    pieces = _pieces(unwrap_module(model), "")
    return {piece.name: piece.module for piece in pieces if piece.is_block}


def _runs(pieces: list[_ModulePart]) -> Iterator[list[_ModulePart]]:
    blocks = any(piece.is_block for piece in pieces)
    for (is_block, alone), run in groupby(pieces, key=lambda each: (each.is_block, each.alone)):
        if is_block:
            yield from ([piece] for piece in run)
        elif alone or not blocks:
            yield from _with_norms(run)
        else:
            yield list(run)


def _with_norms(pieces: Iterable[_ModulePart]) -> list[list[_ModulePart]]:
    """Give each plain module a layer, with the normalisation behind it, or before the first."""
    runs: list[list[_ModulePart]] = []
    for piece in pieces:
        only_norms = runs and all(isinstance(each.module, NORMS) for each in runs[-1])
        if runs and (only_norms or isinstance(piece.module, NORMS)):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs


def _pieces(module: nn.Module, name: str) -> Iterator[_ModulePart]:
    """Open a module: what is its own, then its parts in order, those that are opened as well."""
    own, parts = list(module.parameters(recurse=False)), _parts(module)
    if own:
        yield _ModulePart(plain_name(name) or "(itself)", module, own, is_block=False, alone=False)
    alone = isinstance(module, STACKS) and any(_parts(part) for _, part in parts)
    for child_name, part in parts:
        full = f"{name}.{child_name}" if name else child_name
        if _is_opened(part, module):
            yield from _pieces(part, full)
        else:
            held, is_block = list(part.parameters()), bool(_parts(part))
            yield _ModulePart(plain_name(full), part, held, is_block, alone)


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children that have parameters, unwrapped."""
    return [
        (name, unwrap_module(child))
        for name, child in module.named_children()
        if next(child.parameters(), None) is not None
    ]


def _is_opened(part: nn.Module, around: nn.Module) -> bool:
    """Say whether the blocks inside a part are counted, rather than the part as one.

    A stack in a stack is opened where it is a stage: all its parts are blocks of one type. Any
    other block of a stack counts as one, but for a Sequential's only one of its type that holds a
    stack of blocks itself: a backbone.
    """
    siblings = [each for _, each in _parts(around)]
    if not isinstance(around, STACKS):
        alone = len(siblings) == 1 and bool(_parts(part))
        return isinstance(part, STACKS) or alone or _holds_blocks(part)
    if not _holds_blocks(part):
        return False
    if isinstance(part, STACKS):
        inner = [each for _, each in _parts(part)]
        return len({type(each) for each in inner}) == 1 and all(_parts(each) for each in inner)
    return isinstance(around, nn.Sequential) and sum(type(e) is type(part) for e in siblings) == 1


def _holds_blocks(module: nn.Module) -> bool:
    """Say whether a stack of blocks is somewhere in a module, or is it."""
    return any(
        isinstance(each, STACKS) and any(_parts(part) for _, part in _parts(each))
        for each in module.modules()
    )
