"""Which functions of torch are wrapped, and what the rules hear of their calls."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader

from surestep.doctor import private
from surestep.doctor.identity import IdentityDict
from surestep.doctor.runtime.passes import count_batches
from surestep.doctor.watch.forwards import Forwards
from surestep.doctor.watch.functions import FUNCTIONS, read_parameters
from surestep.doctor.watch.listeners import Listeners
from surestep.doctor.watch.wrap import Around, wraps
from surestep.doctor.watcher import TorchCall

Wrapper = tuple[Any, str, Callable[[Any], Any]]
_SCHEDULES = [
    schedule
    for schedule in vars(lr_scheduler).values()
    if isinstance(schedule, type) and issubclass(schedule, lr_scheduler.LRScheduler)
]


class Events:
    """Turns calls of torch's functions into calls of the rules.

    Args:
        listeners: the rules.
        forwards: the hooks of forward passes.
    """

    def __init__(self, listeners: Listeners, forwards: Forwards) -> None:
        self._listeners, self._forwards, self._run = listeners, forwards, listeners.run
        self._passes: IdentityDict[Any, tuple[DataLoader[Any], _Pass]] = IdentityDict()
        self._open: list[_Pass] = []  # no dictionary: a loader that defines equality has no hash

    def list_wrappers(self) -> Iterator[Wrapper]:
        """Yield the owner and the name of each function to wrap, and what wraps it."""
        yield from self._wrap_training()
        yield from self._wrap_scaler()
        yield from self._wrap_schedules()
        yield from self._wrap_state()
        yield from self._wrap_loader()
        for name in sorted(self._listeners.functions):
            is_deaf = functools.partial(self._is_deaf, name)
            around = Around(None, self._hear(name), self._listeners.guard, is_deaf)
            for owner, attribute in FUNCTIONS[name]:
                yield owner, attribute, around

    def _around(
        self, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None
    ) -> Around:
        return Around(before, after, self._listeners.guard, self._is_busy)

    def _is_busy(self) -> bool:
        return self._listeners.is_busy

    def _is_deaf(self, name: str) -> bool:
        """Return whether no rule hears a call: AdamW calls `sqrt` for each parameter."""
        is_called_by_another = self._run.in_step or self._listeners.is_busy
        return is_called_by_another or not self._listeners.hear_function(name)

    def _hear(self, name: str) -> Callable[..., None]:
        parameters = read_parameters(name)

        def hear(result: Any, *args: Any, **options: Any) -> None:
            given = {**dict(zip(parameters, args, strict=False)), **options}
            call = TorchCall(name, {**parameters, **given}, result, frozenset(given))
            self._listeners.call_function(call)

        return hear

    def _wrap_training(self) -> Iterator[Wrapper]:
        call = self._listeners.call

        def iter_parameters(owner: nn.Module | Optimizer) -> list[Tensor]:
            if isinstance(owner, nn.Module):
                return list(owner.parameters())
            return [p for group in owner.param_groups for p in group["params"]]

        def zero(owner: nn.Module | Optimizer, *_: Any, **__: Any) -> None:
            call("on_zero_grad", iter_parameters(owner))

        def zeroed(_: None, owner: nn.Module | Optimizer, *__: Any, **___: Any) -> None:
            if self._run.is_sampled:
                call("after_zero_grad", iter_parameters(owner))

        def change_mode(module: nn.Module, mode: bool = True) -> None:
            call("on_mode", module, mode)
            self._forwards.see_next()

        def made(_: object, optimizer: Optimizer, *__: Any, **___: Any) -> None:
            self._forwards.begin_optimizer()
            call("on_new_optimizer", optimizer)

        def compile_module(model: Any = None, *_: Any, **options: Any) -> None:
            self._forwards.give_up()
            if model is not None:  # otherwise it returns a decorator, which calls it again
                call("on_compile", model, options)

        yield torch.autograd, "backward", self._wrap_backward
        for zeroes in (nn.Module, Optimizer):
            yield zeroes, "zero_grad", self._around(zero, zeroed)
        yield Optimizer, "__init__", self._around(after=made)
        yield nn.Module, "train", self._around(change_mode)
        for owner in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                yield owner, name, functools.partial(self._wrap_clip, name)
        compiled = self._around(compile_module)  # one, as the second of these calls the first
        yield torch, "compile", compiled
        yield nn.Module, "compile", compiled

    def _wrap_backward(self, original: Any) -> Any:
        run, listeners = self._run, self._listeners

        def begin(
            losses: list[Tensor],
            grad_tensors: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            *_: Any,
            **__: Any,
        ) -> None:
            run.backwards += 1
            listeners.call("on_backward", losses, bool(retain_graph or create_graph))

        @wraps(original)
        def backward(*args: Any, **options: Any) -> Any:
            is_skipped = is_compiling() or run.in_backward or listeners.is_busy
            if is_skipped or not (args or "tensors" in options):  # which torch reports
                return original(*args, **options)
            tensors, rest = (args[0], args[1:]) if args else (options.pop("tensors"), ())
            if isinstance(tensors, Iterator):  # it can be read only once
                tensors = list(tensors)
            # An edge of a graph is a named tuple.
            losses = list(tensors) if type(tensors) in (list, tuple) else [tensors]
            with listeners.guard:
                begin(losses, *rest, **options)
            run.in_backward = True
            try:
                result = original(tensors, *rest, **options)
            finally:
                run.in_backward = False
            with listeners.guard:
                listeners.call("after_backward", losses)
            return result

        return backward

    def _wrap_clip(self, name: str, original: Any) -> Any:
        limit = "max_norm" if name == "clip_grad_norm_" else "clip_value"

        @wraps(original)
        def clip(*args: Any, **options: Any) -> Any:
            given = dict(zip(("parameters", limit), args, strict=False)) | options
            if self._listeners.is_busy or not {"parameters", limit} <= given.keys():
                return original(*args, **options)  # torch reports the wrong call
            parameters = given.pop("parameters")
            # A generator can be read only once.
            listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            value = given.pop(limit)
            result = original(listed, value, *args[2:], **given)
            norm = result if limit == "max_norm" else None
            with self._listeners.guard:
                self._listeners.call("on_clip", listed, float(value), norm)
            return result

        return clip

    def _wrap_scaler(self) -> Iterator[Wrapper]:
        def hear(method: str) -> Callable[..., None]:
            def before(scaler: Any, optimizer: Any = None, *_: Any, **__: Any) -> None:
                if not scaler.is_enabled():
                    return
                has_optimizer = method in ("on_unscale", "on_scaler_step")
                self._listeners.call(method, scaler, *([optimizer] if has_optimizer else []))

            return before

        methods = {
            "scale": "on_scale",
            "unscale_": "on_unscale",
            "step": "on_scaler_step",
            "update": "on_scaler_update",
        }
        for name, method in methods.items():
            yield torch.amp.GradScaler, name, self._around(hear(method))

    def _wrap_schedules(self) -> Iterator[Wrapper]:
        def made(_: object, schedule: Any, *__: Any, **___: Any) -> None:
            self._listeners.call("on_schedule", schedule)

        making = self._around(after=made)

        def step(schedule: Any, *args: Any, **_: Any) -> None:
            if not making.is_inside:  # a schedule takes a step of its own when it is made
                self._listeners.call("on_schedule_step", schedule, args)

        around = {"__init__": making, "step": self._around(step)}
        for schedule in _SCHEDULES:
            for name in around.keys() & vars(schedule).keys():
                yield schedule, name, around[name]

    def _wrap_state(self) -> Iterator[Wrapper]:
        call = self._listeners.call

        def made(state: Any, owner: Any, *_: Any, **__: Any) -> None:
            call("after_state", owner, state)

        def load(owner: Any, state: Any = None, *_: Any, **options: Any) -> None:
            call("on_load_state", owner, options.get("state_dict", state))

        def save(obj: Any, f: Any = None, *_: Any, **__: Any) -> None:
            call("on_save", obj, f)

        def loaded(value: Any, f: Any = None, *_: Any, **__: Any) -> None:
            call("after_load", value, f)

        for owner in (nn.Module, Optimizer, *_SCHEDULES):
            for name, around in (
                ("state_dict", self._around(after=made)),
                ("load_state_dict", self._around(load)),
            ):
                if name in vars(owner):
                    yield owner, name, around
        yield torch.amp.GradScaler, "load_state_dict", self._around(load)
        saved, read = self._around(save), self._around(after=loaded)
        for module in (torch, torch.serialization):
            yield module, "save", saved
            yield module, "load", read

    def end_loaders(self) -> None:
        """Report the passes that ended although the script did not ask for one batch more."""
        for loader in [entry.loader() for entry in self._open]:
            if loader is not None:
                self._end_loader(loader)

    def _end_loader(self, loader: DataLoader[Any]) -> None:
        """Report the end of a pass that gave all batches; Lightning counts them and then stops."""
        ended = [entry for entry in self._open if entry.loader() is loader]
        self._open = [
            entry for entry in self._open if entry not in ended and entry.loader() is not None
        ]
        if any(entry.batches and entry.batches == count_batches(loader) for entry in ended):
            self._listeners.call("after_loader", loader)

    def _wrap_loader(self) -> Iterator[Wrapper]:
        def begin(loader: DataLoader[Any]) -> None:
            self._end_loader(loader)
            self._listeners.call("on_loader", loader)
            self._forwards.see_next()

        def begun(iterator: Any, loader: DataLoader[Any]) -> None:
            if isinstance(iterator, private.LoaderIterator):  # the loader may return another one
                current = _Pass(weakref.ref(loader))
                self._open.append(current)
                self._passes[iterator] = loader, current

        yield DataLoader, "__iter__", self._around(begin, begun)
        if self._listeners.hear("on_batch", "after_loader"):
            yield private.LoaderIterator, "__next__", self._wrap_next

    def _wrap_next(self, original: Any) -> Any:
        listeners = self._listeners

        @wraps(original)
        def read_next(iterator: Any) -> Any:
            started = time.perf_counter()
            known = self._passes.get(iterator)
            if known is None:  # it was made before the script was watched
                return original(iterator)
            loader, current = known
            try:
                batch = original(iterator)
            except StopIteration:
                current.batches = 0
                with listeners.guard:
                    listeners.call("after_loader", loader)
                raise
            current.batches += 1
            with listeners.guard:
                listeners.call("on_batch", loader, batch, time.perf_counter() - started)
            return batch

        return read_next


@dataclass(eq=False)
class _Pass:
    """A pass over a DataLoader whose end was not reported.

    Attributes:
        loader: a weak reference.
        batches: that it gave; 0 after its end was reported.
    """

    loader: weakref.ref[DataLoader[Any]]
    batches: int = 0
