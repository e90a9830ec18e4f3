"""The layers of a model, in the order of its modules: how deep each parameter is.

A block, which is a module made of modules, is one layer. ModuleList, Sequential and the modules
around them are opened to find the blocks. Plain modules in a list with blocks, or in a model
without blocks, are one layer each, together with the normalization beside them. All others before,
between or after blocks are one layer together: the embeddings, the head. A shared parameter belongs
to the first layer that has it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from torch import nn

from surestep.engine.model.parametrized import own_children, own_parameters

STACKS = (nn.Sequential, nn.ModuleList)
NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Layer:
    """A layer of a model: its number from 1 at the input, names of its modules, all parameters."""

    index: int
    modules: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]


class _ModulePart(NamedTuple):
    name: str
    module: nn.Module
    parameters: list[nn.Parameter]
    is_block: bool
    alone: bool  # a separate layer


def layers_of(model: nn.Module) -> tuple[Layer, ...]:
    """Return the layers of a model, from the input on; each parameter is in one."""
    visited: set[int] = set()
    parts = []
    for part in _open(model, ""):
        new = [p for p in part.parameters if id(p) not in visited]
        visited |= {id(p) for p in new}
        if new:
            parts.append(part._replace(parameters=new))
    return tuple(
        Layer(
            index,
            tuple(part.name for part in layer),
            tuple(p for part in layer for p in part.parameters),
        )
        for index, layer in enumerate(_group(parts), start=1)
    )


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a model by name, in order."""
    return {part.name: part.module for part in _open(model, "") if part.is_block}


def _group(parts: list[_ModulePart]) -> Iterator[list[_ModulePart]]:
    has_blocks = any(part.is_block for part in parts)
    for (is_block, alone), run in groupby(parts, key=lambda part: (part.is_block, part.alone)):
        if is_block:
            yield from ([part] for part in run)
        elif alone or not has_blocks:
            yield from _with_norms(run)
        else:
            yield list(run)


def _with_norms(parts: Iterable[_ModulePart]) -> list[list[_ModulePart]]:
    """Give each plain module a layer, with the normalization after it, or before the first."""
    runs: list[list[_ModulePart]] = []
    for part in parts:
        only_norms = runs and all(isinstance(norm.module, NORMS) for norm in runs[-1])
        if runs and (only_norms or isinstance(part.module, NORMS)):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _open(module: nn.Module, name: str) -> Iterator[_ModulePart]:
    """Yield a module's own parameters, then its children in order, opened in the same way."""
    own, children = own_parameters(module), _parts(module)
    if own:
        yield _ModulePart(name or "(itself)", module, own, is_block=False, alone=False)
    alone = isinstance(module, STACKS) and any(_parts(child) for _, child in children)
    for child_name, child in children:
        full = f"{name}.{child_name}" if name else child_name
        if _is_opened(child, module):
            yield from _open(child, full)
        else:
            parameters, is_block = list(child.parameters()), bool(_parts(child))
            yield _ModulePart(full, child, parameters, is_block, alone)


def _parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children that have parameters."""
    return [
        (name, child)
        for name, child in own_children(module)
        if next(child.parameters(), None) is not None
    ]


def _is_opened(part: nn.Module, around: nn.Module) -> bool:
    """Return whether the blocks inside a part are counted, rather than the part as one.

    A stack in a stack is opened if it is a stage: all its parts are blocks of one type. Any other
    block of a stack counts as one, except a backbone: the only one of its type in a Sequential that
    holds a stack of blocks.
    """
    siblings = [child for _, child in _parts(around)]
    if not isinstance(around, STACKS):
        alone = len(siblings) == 1 and bool(_parts(part))
        return isinstance(part, STACKS) or alone or _holds_blocks(part)
    if not _holds_blocks(part):
        return False
    if isinstance(part, STACKS):
        inner = [child for _, child in _parts(part)]
        return len(set(map(type, inner))) == 1 and all(map(_parts, inner))
    return isinstance(around, nn.Sequential) and sum(type(s) is type(part) for s in siblings) == 1


def _holds_blocks(module: nn.Module) -> bool:
    """Return whether a module is or contains a stack of blocks."""
    return any(
        isinstance(stack, STACKS) and any(_parts(part) for _, part in _parts(stack))
        for stack in module.modules()
    )
