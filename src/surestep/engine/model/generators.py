"""Generators that a model, its loss or a step of the user's own keeps: seeded by place too."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.generators import DatasetRNG, DatasetRNGs, is_installed, is_same_state

_MEND_DRAWS = (
    "Draw from torch's, numpy's or Python's global generator, or set "
    "activation_checkpointing='off'."
)
_OF_TORCH = frozenset(vars(nn.Module()))


class Seeded(NamedTuple):
    """A generator that takes its seed as torch's do."""

    own: DatasetRNG

    def manual_seed(self, seed: int) -> None:
        """Seed it for a place."""
        self.own.reseed(seed)


def own_generators(model: nn.Module | None, others: Mapping[str, Any]) -> DatasetRNGs:
    """Find the generators in the attributes of modules and in the functions of their classes.

    Args:
        model: the model; None where there is none.
        others: losses and functions by name: a module, or what closes over generators or names
            global ones.
    """
    roots: dict[str, Any] = {}
    for name, each in [("model", model), *others.items()]:
        if isinstance(each, nn.Module):
            for path, member in _members(each, name):
                _add(roots, path, member)
        elif each is not None:
            _add(roots, name, each)
    return DatasetRNGs(**roots)


def _add(roots: dict[str, Any], name: str, value: Any) -> None:
    """Add a root; a name that another object has gets a number, as two classes may share one."""
    free, number = name, 1
    while free in roots and roots[free] is not value:
        number += 1
        free = f"{name}#{number}"
    roots[free] = value


def _members(model: nn.Module, root: str) -> Iterator[tuple[str, Any]]:
    """Yield what may hold a generator: attributes that are not torch's, and methods."""
    seen: set[type] = set()
    for name, module in model.named_modules():
        path = f"{root}.{name}" if name else root
        for key, value in vars(module).items():
            if key not in _OF_TORCH and not isinstance(value, (Tensor, nn.Module)):
                yield f"{path}.{key}", value
        for kind in type(module).__mro__:
            if kind not in seen and not is_installed(kind):
                for key, value in vars(kind).items():
                    yield f"{kind.__qualname__}.{key}", value
            seen.add(kind)


def check_own_generators(
    found: DatasetRNGs, checkpointing: str, compiles: bool
) -> list[DatasetRNG]:
    """Check that what is drawn from them can be drawn again; warn of those that take no seed.

    Args:
        found: the generators of the model.
        checkpointing: the Plan's `activation_checkpointing`.
        compiles: torch.compile is used, which takes no contexts of a recomputation.

    Returns:
        Those to be watched by `forbid_draws` in each recomputation.

    Raises:
        TaskError: the forward is computed twice, and draws by the second cannot be watched.
    """
    watched = found.found if checkpointing != "off" else []
    for each in watched:
        if compiles or each.state is None:
            raise TaskError(
                f"activation_checkpointing={checkpointing!r} computes the forward twice, and the "
                f"second one may draw different numbers from {each.path}. {_MEND_DRAWS}"
            )
    for each in found.found:
        if each.seed is None:
            warn(
                f"{each.path} ({each.kind}) takes no seed, so a resumed run draws other numbers. "
                "Use random.Random, numpy.random.default_rng() or torch.Generator."
            )
    return watched


@contextmanager
def forbid_draws(watched: Sequence[DatasetRNG]) -> Iterator[None]:
    """Recompute a forward within this.

    Args:
        watched: generators whose state can be read.

    Raises:
        TaskError: the recomputation drew from one of them.
    """
    before = [each.state() for each in watched if each.state is not None]
    try:
        yield
    finally:  # torch leaves a recomputation by an exception when it has all that it needs
        for each, state in zip(watched, before, strict=True):
            if each.state is not None and not is_same_state(state, each.state()):
                raise TaskError(
                    "activation_checkpointing computes the forward twice, and the second one drew "
                    f"different numbers from {each.path}. {_MEND_DRAWS}"
                )


def find_late(found: DatasetRNGs, generators: list[Any]) -> Callable[[], None]:
    """Return what is to be called after the first step: it warns of generators made within it.

    Args:
        found: those that were there before.
        generators: receives the new ones, to be seeded from the next micro-batch on.
    """

    def look() -> None:
        before = {each.path for each in found.found}
        if found.has_new():
            late = [each for each in found.found if each.path not in before]
            generators.extend(map(Seeded, late))
            if late:  # empty if the paths are the same as before
                warn(
                    f"{late[0].path} ({late[0].kind}) was made in the first step. So the first "
                    "step of a resumed run draws other numbers. Make it in __init__: then it is "
                    "seeded for each micro-batch."
                )

    return look
