"""The saved weights have the prefix of a wrapper in their names.

The state dict of a model in DistributedDataParallel or DataParallel has names such as
`module.weight`, and that of a compiled model `_orig_mod.weight`. A plain model cannot load them.
With `strict=False`, it loads nothing and keeps its random weights.

Ignore it if only wrapped models load the file. A checkpoint that has more than weights, or a script
that loads or renames such weights, is not reported.

Source: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html

Wrong:

    import io

    import torch

    model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
    torch.save(model.state_dict(), io.BytesIO())

Right:

    import io

    import torch

    model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
    torch.save(model.module.state_dict(), io.BytesIO())
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import ref

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.source.checkpoints import Save, find_restores, find_saves
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Call, Value, walk
from surestep.doctor.source.wrapping import PREFIXES, event_of, find_wrapper
from surestep.doctor.watcher import Script, Watcher

SEVERITY = "warning"
FIX = "Save the weights of the model inside: model.module.state_dict(), or of the uncompiled model."
_RENAMES = re.compile(r"""["']module\.|_orig_mod|consume_prefix|unwrap""")


def check(program: Program) -> Iterator[Problem]:
    """Find files with only the weights of a wrapped model, which the script does not load."""
    saves = [(trace, save) for trace in program.traces for save in find_saves(trace)]
    if not saves or program.contains(_RENAMES) or any(map(find_restores, program.traces)):
        return
    for trace, save in saves:
        states = [part for part in walk(save.value) if _is_state(part)]
        if len(states) == 1 and (prefix := _prefix_of(trace, states[0])):
            yield at_event(
                save.event,
                f"The names of the weights in {_name(save)} start with `{prefix}`: "
                f"`{describe(states[0])}` is that of the wrapper.",
            )


def _name(save: Save) -> str:
    return "the file" if save.path is None else f"`{describe(save.path)}`"


def _is_state(value: Value) -> bool:
    return isinstance(value, Call) and value.path == ".state_dict"


def _prefix_of(trace: Trace, state: Value) -> str:
    """Return the prefix of the names in a state dict; "" if it has none, as far as is known."""
    if not isinstance(state, Call) or not isinstance(state.node, ast.Call):
        return ""
    if isinstance(state.receiver, Call):
        return PREFIXES.get(state.receiver.path, "")
    event = event_of(trace, state)
    expression = getattr(state.node.func, "value", None)
    if event is None or not isinstance(expression, ast.expr):
        return ""
    wrapper = find_wrapper(trace, event, expression, tuple(PREFIXES))
    return "" if wrapper is None else PREFIXES[wrapper.path]


class WrapperPrefixSavedWatcher(Watcher):
    """Recognize the states of wrapped models in what is saved."""

    def __init__(self) -> None:
        self._states: list[tuple[ref[Any], str]] = []  # the last ones, and the prefix of each
        self._saved: tuple[Location, str, int] | None = None
        self._is_loaded = False

    def after_state(self, run: Script, owner: Any, state: Any) -> None:
        prefix = _find_prefix(owner)
        if prefix:
            self._states = [*self._states[-7:], (ref(state), prefix)]

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        self._is_loaded = self._is_loaded or bool(_find_prefix(owner))

    def on_save(self, run: Script, value: Any, file: Any) -> None:
        is_pair = isinstance(value, Mapping) and len(value) == 1
        saved = [value, *value.values()] if is_pair else [value]
        for state, prefix in self._states:
            alive = state()
            if self._saved is None and alive is not None and any(alive is part for part in saved):
                self._saved = run.locate(), prefix, run.step + 1

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._saved is not None and not self._is_loaded:
            location, prefix, step = self._saved
            yield Problem(
                f"The names of the saved weights begin with `{prefix}`, which a plain model does "
                "not have.",
                {"prefix": prefix},
                location=location,
                since_step=step,
            )


def _find_prefix(owner: Any) -> str:
    """Return what a wrapper puts before the names of weights; nothing if it is none."""
    if "_orig_mod" in getattr(owner, "_modules", {}):
        return "_orig_mod."
    wrappers = ("DataParallel", "DistributedDataParallel")
    return "module." if type(owner).__name__ in wrappers else ""
