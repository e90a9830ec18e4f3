"""The script is seeded, but some of what it draws or computes differs between runs.

`torch.manual_seed` does not seed NumPy or `random`. If these decide an order or a split, two runs
with the same seed differ. `cudnn.benchmark` chooses convolutions by measuring them, so together
with `cudnn.deterministic` runs can still differ. Nothing fails: results do not repeat.

A seed that is set after the model was made does not repeat its first weights.

In a script that does not train, only orders and splits are reported. Draws in classes are not
reported: PyTorch seeds NumPy and `random` in the workers of a DataLoader.

Source: https://docs.pytorch.org/docs/stable/notes/randomness.html

Wrong:

    import numpy as np
    import torch

    torch.manual_seed(0)
    data = torch.randn(20, 4)
    order = np.random.permutation(20)
    train, val = data[order[:15]], data[order[15:]]

Right:

    import random

    import numpy as np
    import torch


    def set_seed(seed) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)


    set_seed(0)
    order = np.random.permutation(20)
    random.shuffle([1, 2, 3])
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.modules import contains, has_parameters, models_of
from surestep.doctor.source.orders import draws_order, has_generator, shuffled_by
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, find_actions, is_optimizer
from surestep.doctor.source.values import Call, Constant

SEVERITY = "warning"
FIX = "Seed torch, NumPy and random with the same number at the start of the script."
_TORCH_SEEDS = ("torch.manual_seed", "torch.random.manual_seed")
_SAMPLES = frozenset(
    f"numpy.random.{name}"
    for name in "rand randn randint random random_sample normal uniform lognormal binomial poisson "
    "exponential standard_normal choice multivariate_normal".split()
)
_LIBRARIES = {"numpy.random.seed": "NumPy", "random.seed": "random"}
_REPLACES = ("load_state_dict", "load_checkpoint", "load_state", "copy_", "fill_", "apply")
_PROCESSES = ("torch.distributed.", "accelerate.", "torch.nn.parallel.DistributedDataParallel")
_TORCH_ALONE = (*_TORCH_SEEDS, "torch.cuda.manual_seed_all", "torch.cuda.manual_seed")
_SEED = re.compile(r"seed|random_state|set_state|setstate|RandomState", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find generators without a seed beside one with a seed, and conflicting modes of cuDNN."""
    events = program.events
    yield from _check_modes(events)
    for trace in program.traces:
        yield from _check_model(trace)
    seeds = [event for event in events if event.call and event.call.path in _TORCH_SEEDS]
    paths = {event.call.path for event in events if event.call and _SEED.search(event.call.path)}
    others = paths.difference(_TORCH_ALONE)
    if not seeds or others.difference(_LIBRARIES):
        return
    seeded = {_LIBRARIES[path] for path in others}
    for trace in program.traces:
        places = [i for i, event in enumerate(trace.events) if event in seeds]
        is_training = any(action.kind == "step" for action in find_actions(trace))
        for event in trace.events[places[0] :] if places else ():
            if event.call is None or _is_in_class(event):
                continue
            library = "random" if event.call.path.startswith("random") else "NumPy"
            is_sample = is_training and event.call.path in _SAMPLES
            if library not in seeded and (is_sample or _draws(event.call)):
                yield at_event(
                    event,
                    f"`{describe(event.call)}` differs in each run: torch is seeded, {library} is "
                    "not.",
                )
                return


def _check_model(trace: Trace) -> Iterator[Problem]:
    """Find a model that was made before the only seed of torch.

    In a function that other files may call, they can have set the seed. With several processes,
    a late seed can be meant for their data alone.
    """
    events = trace.events
    if any(event.call and event.call.path.startswith(_PROCESSES) for event in events):
        return
    seeds = [
        i
        for i, event in enumerate(events)
        if event.call
        and event.call.path not in _LIBRARIES
        and (_SEED.search(event.call.path) or event.call.name == "fork_rng")
    ]
    steps = [action.event for action in find_actions(trace) if action.kind == "step"]
    if trace.entry is not None or not seeds or not steps:
        return
    seed, until = events[seeds[0]], events.index(steps[0])
    is_set_once = not seed.loops and seed.call is not None and seed.call.path in _TORCH_SEEDS
    if not is_set_once or until < seeds[0] or _has_other_weights(events[:until]):
        return
    optimizers = [event.value for event in events if event.call and is_optimizer(event.value)]
    models = [model for optimizer in optimizers for model in models_of(optimizer)]
    for event in events[: seeds[0]]:
        is_random = event.call is not None and has_parameters(event.call)
        is_sure = event.branches == seed.branches and not event.loops
        if (
            is_random
            and is_sure
            and any(model is event.value or contains(model, event.value) for model in models)
        ):
            yield at_event(
                seed,
                f"`{describe(seed.call)}` is called after the model was made, so its first "
                "weights differ in each run.",
            )
            return


def _has_other_weights(events: list[Event]) -> bool:
    """Return whether a call may have replaced the first weights."""
    return any(
        event.call is not None
        and (event.call.name in _REPLACES or event.call.path.startswith("torch.nn.init."))
        for event in events
    )


def _draws(call: Call) -> bool:
    """Return whether a call draws an order from the global generator of NumPy or `random`."""
    is_global = not call.path.startswith("torch.") and not has_generator(call)
    return is_global and (draws_order(call) or shuffled_by(call) is not None)


def _is_in_class(event: Event) -> bool:
    return any(function.owner is not None for function in event.stack)


def _check_modes(events: list[Event]) -> Iterator[Problem]:
    """Find `cudnn.benchmark = True` beside `cudnn.deterministic = True`."""
    modes = {
        event.target.attr: event
        for event in events
        if event.kind == "store"
        and isinstance(event.target, ast.Attribute)
        and ast.unparse(event.target.value).endswith("cudnn")
        and isinstance(event.value, Constant)
        and event.value.value is True
        and not event.branches
    }
    if "benchmark" in modes and "deterministic" in modes:
        yield at_event(
            modes["benchmark"],
            "`cudnn.benchmark` chooses algorithms by measuring them, although "
            "`cudnn.deterministic` is set.",
        )
