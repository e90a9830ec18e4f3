"""Find tensors that get a gradient of the loss, and that no optimizer has: nothing trains them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.batch import flatten_tensors
from surestep.engine.object_search import members_of, roots_of, search_objects
from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.schedule.groups import NO_CHANGE
from surestep.engine.state.state import State

_RECOMPUTED = "CheckpointFunctionBackward"  # torch.utils.checkpoint with use_reentrant=True
_FREEZE = "or freeze it: requires_grad_(False)."


class UnheldLeafCheck:
    """Checks the leaves of the graph of a loss: the first one, and the first after a change.

    A change is a module or parameter that is registered in the model; others are found after the
    next log point. A tensor that is not an `nn.Parameter` counts only if two losses depend on it:
    the forward or the loss may create one each time, such as the points of a gradient penalty.

    Args:
        state: the model and its optimizers.
        codes: losses and functions of the Task that may hold tensors, by name.
        leaves: the parameters of the model as a graph has them, trained or not: which of them are
            trained was decided when the optimizers were built.

    Attributes:
        checked: the losses that were checked since the last change, by the names of the optimizers
            that a manual step accumulates gradients for.
    """

    def __init__(self, state: State, codes: Mapping[str, Any], leaves: Iterable[Tensor]) -> None:
        self.checked: set[tuple[str, ...]] = set()
        self._state, self._codes = state, codes
        trained = (p for optimizer in state.optimizers.values() for p in parameters_of(optimizer))
        self._held = {id(tensor): tensor for tensor in (*trained, *leaves)}
        self._names = {name for name, _ in state.model.named_parameters()}
        self._modules = {id(module) for module in state.model.modules()}
        self._new: dict[int, Tensor] = {}  # were in the graph before, and may have been created
        self._changed_after: int | None = None
        self._hides_some = False
        self._hooks = (
            register_module_module_registration_hook(self._note_change),
            register_module_parameter_registration_hook(self._note_change),
        )

    def close(self) -> None:
        """Notice no more changes."""
        for hook in self._hooks:
            hook.remove()

    def repeat(self, *_: object) -> None:
        """Check the next loss again, at a log point: not every change can be noticed."""
        self.checked.clear()

    def _note_change(self, module: nn.Module, name: str, value: object) -> None:
        if id(module) in self._modules:
            self.checked.clear()
            self._changed_after = self._state.progress.step

    def check(self, loss: Tensor, batch: Any, optimizers: tuple[str, ...] = ()) -> None:
        """Check the graph of a loss.

        Args:
            loss: a tensor with a graph.
            batch: the tensors that it was computed from, which may require a gradient.
            optimizers: that a manual step accumulates gradients for.

        Raises:
            TaskError: a leaf of the graph is in no optimizer; it has the path to that leaf.
        """
        self._modules = {id(module) for module in self._state.model.modules()}
        known = self._held.keys() | {id(tensor) for tensor in flatten_tensors(batch)}
        leaves, hides_some = _leaves_of(loss)
        if hides_some and not self._hides_some:
            self._hides_some = True
            warn(
                "Whether an optimizer has every tensor that is trained is not fully checked, since "
                "torch.utils.checkpoint hides some. Pass it use_reentrant=False."
            )
        unheld = {id(leaf): leaf for leaf in leaves if id(leaf) not in known}
        again = self._new.keys() & unheld.keys()
        for key, leaf in unheld.items():
            if isinstance(leaf, nn.Parameter) or key in again:
                raise TaskError(self._describe(leaf))
        if unheld and not self._new:
            self._new = unheld  # the next loss shows whether they are created each time
        else:
            self._new = {}
            self.checked.add(optimizers)

    def _describe(self, leaf: Tensor) -> str:
        path, model, kind = self._path_to(leaf), self._state.model, "tensor"
        after = self._changed_after
        when = f" after step {after}" if after else " after the optimizer was built"
        is_parameter = isinstance(leaf, nn.Parameter)
        if path is None and is_parameter:
            kind = "parameter, which the forward or the loss creates or takes from a cache,"
            remedy = f"Create it once, in __init__ of the model, {_FREEZE}"
        elif not is_parameter:
            remedy = (
                "If it is to be trained, make it an nn.Parameter of the model. If only a "
                "derivative by it is needed, use a copy in each forward: "
                "x.detach().requires_grad_()."
            )
        elif path is not None and path.startswith("model."):
            name = path.removeprefix("model.")
            if any(parameter is leaf for parameter in model.parameters()):
                kind = f"parameter, {'replaced' if name in self._names else 'added'}{when},"
                remedy = f"Change the model before you make the Task, {_FREEZE}"
            else:
                kind = "parameter, which the model does not register,"
                remedy = (
                    "Use nn.ModuleList, nn.ModuleDict or nn.ParameterList instead of a plain list "
                    f"or dict, or make it an attribute of the module, {_FREEZE}"
                )
        else:
            kind = "parameter"
            remedy = (
                "Make it a part of the model, and let the model return what the loss needs, "
                f"{_FREEZE}"
            )
        optimizers = self._state.optimizers.values()
        if any(one is leaf for optimizer in optimizers for one in parameters_of(optimizer)):
            what = "a parameter" if path is None else f"{path}, a parameter"
            return (
                f"In step {self._state.progress.step + 1}, {what} of shape {tuple(leaf.shape)} is "
                f"in an optimizer that was built without it. {NO_CHANGE}"
            )
        what = f"a {kind}" if path is None else f"{path}, a {kind}"
        return (
            f"In step {self._state.progress.step + 1}, {what} of shape {tuple(leaf.shape)} gets a "
            f"gradient, and no optimizer has it: nothing would train it. {remedy}"
        )

    def _path_to(self, leaf: Tensor) -> str | None:
        paths: list[str] = []

        def visit(path: str, value: Any, _: int) -> bool:
            paths.extend(path + name for name, tensor in _tensors_in(value) if tensor is leaf)
            return not paths

        search_objects(roots_of(self._state.model, self._codes), visit)
        return paths[0] if paths else None


def _leaves_of(loss: Tensor) -> tuple[list[Tensor], bool]:
    """Return the tensors that get a gradient of a loss, and whether its graph hides others."""
    if loss.grad_fn is None:
        return [loss], False
    leaves, hides_some = [], False
    seen, todo = {loss.grad_fn}, [loss.grad_fn]
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(leaf)
        hides_some |= type(node).__name__ == _RECOMPUTED
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
    return leaves, hides_some


def _tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that an object holds itself, with the path to each."""
    if isinstance(value, nn.Module):
        yield from ((f".{name}", p) for name, p in value._parameters.items() if p is not None)
        yield from ((f".{name}", b) for name, b in value._buffers.items() if b is not None)
    for path, member in members_of(value):
        if isinstance(member, Tensor):
            yield path, member
