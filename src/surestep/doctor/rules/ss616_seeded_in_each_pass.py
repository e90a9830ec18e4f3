"""torch is seeded with the same number in each pass of the training loop.

Each epoch then draws what the epoch before drew: the same order of the batches, the same dropout
masks, the same augmentation and noise. A seed in the loop over batches makes even all batches use
the same masks. The model sees far less variation than the code seems to give it.

A seed before an evaluation has the same effect on the epoch that follows. If the evaluation needs
the same numbers each time, seed it inside `with torch.random.fork_rng():`, which restores the
state, or give it a `torch.Generator`.

Only a seed that is a number in the source is reported, and only if the source shows what the
training draws with it: dropout, a shuffled DataLoader, or a tensor behind the loss. Loops that make
an optimizer or reset weights are not reported: there, the same seed makes trials comparable.

Ignore it if the passes are only timed, or must be the same for a test.

Source: https://docs.pytorch.org/docs/stable/notes/randomness.html

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    for epoch in range(5):
        torch.manual_seed(0)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    for epoch in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.loaders import find_loaders, find_training_loops
from surestep.doctor.source.losses import find_trained
from surestep.doctor.source.modes import find_switch
from surestep.doctor.source.modules import find_layers, models_of
from surestep.doctor.source.trace import Event, Program, SourceLoop, Trace
from surestep.doctor.source.training import (
    Action,
    describe,
    find_actions,
    is_optimizer,
    is_same,
    strip,
    strip_iterators,
)
from surestep.doctor.source.values import Call, Constant

SEVERITY = "warning"
FIX = "Seed once, before the loop."
_SEEDS = ("torch.manual_seed", "torch.random.manual_seed")
_OF_OTHERS = ("random.seed", "numpy.random.seed", "torch.cuda.manual_seed_all")
_RANDOM_STATE = re.compile(r"seed|rng|set_state|setstate", re.IGNORECASE)
_RESETS = re.compile(r"^load_|reset|init|^(copy|fill|zero)_$|^(apply|copy|deepcopy)$")
_NOISE = ("torch.rand_like", "torch.randn_like", "torch.bernoulli")
_ORDERS = ("torch.randperm", "torch.multinomial")
_TRIAL = re.compile(r"trial|run|rep|fold|seed|attempt|try", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find a constant seed in a loop in which one optimizer steps with what is drawn."""
    for trace in program.traces:
        steps = [action for action in find_actions(trace) if action.is_step]
        for event, call in trace.calls:
            if call.path not in _SEEDS or not _is_constant(call):
                continue
            for loop in reversed(event.loops):
                inside = [step for step in steps if loop in step.event.loops]
                if not inside:
                    continue
                if drawn := _find_drawn(trace, event, loop, inside):
                    message = f"each pass of the training loop draws the same numbers for {drawn}."
                    yield at_event(event, f"After `{describe(call)}`, {message}")
                break  # the loops around it may be over trials


def _find_drawn(trace: Trace, seed: Event, loop: SourceLoop, steps: list[Action]) -> str | None:
    """Return what the training certainly draws after a seed; None if the seed may be right."""
    events = [event for event in trace.events if loop in event.loops]
    is_unconditional = set(seed.branches) <= set(events[0].branches)
    if not is_unconditional or not _repeats(loop) or _is_changed(trace, seed, loop):
        return None
    if any(_interferes(event, seed) for event in events):
        return None
    before = {id(event.value) for event in trace.events if loop not in event.loops}
    is_other = any(id(strip(step.target)) not in before for step in steps)
    is_chosen = len({step.event.node for step in steps}) < len(steps)  # one event for each option
    if is_other or is_chosen or any(map(_has_closure, steps)):
        return None  # an optimizer for each pass, or a search along a line, which needs one loss
    return _find_draw(trace, loop) or _find_dropout(trace, steps)


def _repeats(loop: SourceLoop) -> bool:
    """Return whether a loop repeats the same training: over epochs or batches, not over trials."""
    if not isinstance(loop.node, (ast.For, ast.While)):
        return False
    if isinstance(loop.node.body[-1], (ast.Break, ast.Return)):
        return False
    if isinstance(loop.node, ast.While):
        return True
    iterated = strip_iterators(loop.iterated)
    if not isinstance(iterated, Call) or iterated.name not in ("range", "trange", "DataLoader"):
        return False
    match iterated.args:
        case (Constant(value=0 | 1),):
            return False
    return not _TRIAL.search(ast.unparse(loop.node.target))


def _is_changed(trace: Trace, seed: Event, loop: SourceLoop) -> bool:
    """Return whether a loop assigns the variable of a seed: a trace has the first pass only."""
    number = seed.call and seed.call.argument(0, "seed")
    stores = [event for event in trace.events if event.target is not None]
    names = {_name_of(event.target) for event in stores if event.value is number}
    if isinstance(seed.node, ast.Call):
        names.update(map(_name_of, seed.node.args))
    return any(
        loop in event.loops and (event.base is number or _name_of(event.target) in names - {""})
        for event in stores
    )


def _name_of(target: ast.expr | None) -> str:
    """Return the name of a variable or of an attribute."""
    return getattr(target, "attr", getattr(target, "id", ""))


def _interferes(event: Event, seed: Event) -> bool:
    """Return whether an event sets other random numbers, or may start a new training."""
    call = event.call
    if call is None or event is seed:
        return False
    if _RANDOM_STATE.search(call.path):
        return not (call.path in _OF_OTHERS and _is_constant(call))
    is_new = is_optimizer(call) or call.name == "Generator"
    return is_new or bool(_RESETS.search(call.name))


def _has_closure(step: Action) -> bool:
    call = step.event.call
    return step.kind == "step" and call is not None and bool(call.arguments)


def _find_draw(trace: Trace, loop: SourceLoop) -> str | None:
    """Return the order or the noise that training draws from the global generator in a loop."""
    noise: tuple[str, ...] = ()
    for loader in find_loaders(trace):
        for loops in find_training_loops(trace, loader):
            if loop in loops:  # without batches of data, the same noise can be a fixed sample
                noise = _NOISE
            shuffle = loader.option("shuffle")
            is_shuffled = isinstance(shuffle, Constant) and shuffle.value is True
            if loop in loops[:-1] and is_shuffled and not loader.is_set("generator"):
                return "the order of the batches"
    trained = find_trained(trace)
    for event, call in trace.calls:
        is_global = "generator" not in call.keywords and not call.has_unknown_arguments
        is_drawn = call.path in (*_ORDERS, *noise) and is_global
        if loop in event.loops and is_drawn and id(call) in trained:
            return f"`{describe(call)}`"
    return None


def _find_dropout(trace: Trace, steps: list[Action]) -> str | None:
    """Return a layer of dropout of a model that is not in eval mode when an optimizer steps."""
    switched = [call.receiver for _, call in trace.calls if call.name == "eval" and call.is_method]
    for step in steps:
        for model in models_of(step.target):
            has_parts_in_eval = not all(is_same(part, model) for part in switched)
            if has_parts_in_eval or find_switch(trace, step.event, model, is_training=False):
                continue
            for layer in find_layers(model)[0]:
                p = layer.argument(0, "p")
                is_on = p is None or (isinstance(p, Constant) and bool(p.value))
                if layer.path.startswith("torch.nn.Dropout") and is_on:
                    return f"`{describe(layer)}`"
    return None


def _is_constant(call: Call) -> bool:
    """Return whether a seed is a number in the source."""
    return isinstance(call.argument(0, "seed"), Constant)
