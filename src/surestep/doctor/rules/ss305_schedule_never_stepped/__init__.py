"""A schedule is made, but nothing steps it.

The learning rate keeps the first value of the schedule for the whole run. With a warm-up, that is
close to 0. Nothing fails: `scheduler.step` without parentheses is a valid line too.

Ignore it if the schedule is stepped by code that reaches it differently, such as through the
optimizer.

Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    print(scheduler.get_last_lr())

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_node
from surestep.doctor.rules.ss305_schedule_never_stepped.attributes import (
    find_reads,
    is_attribute_used,
)
from surestep.doctor.runtime.schedule_recorder import ScheduleWatcher
from surestep.doctor.source.schedules import TORCH, creations
from surestep.doctor.source.steps import StepOrder
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_made_by, is_same
from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Call scheduler.step() after optimizer.step(), for each batch or each epoch as it counts."

# What does not step a schedule.
_READS = frozenset("state_dict load_state_dict get_last_lr last_epoch get_lr base_lrs".split())
_FEWEST = 5  # steps of the optimizer


def check(program: Program) -> Iterator[Problem]:
    """Find schedules in a variable that is not used, beside steps of their optimizer."""
    for trace in program.traces:
        order = StepOrder(trace)
        for event in trace.events:
            target, made = event.target, event.value
            if event.kind != "store" or not isinstance(target, (ast.Name, ast.Attribute)):
                continue
            if not is_made_by(made, TORCH) or event.branches or event.file is not program.file:
                continue
            optimizer = next(creations(made)).argument(0, "optimizer")
            # If an object trains for one epoch only, whoever calls it may step its schedule.
            fewest_loops = 2 if isinstance(target, ast.Attribute) else 1
            is_trained = any(
                action.is_step
                and len(action.event.loops) >= fewest_loops
                and is_same(action.target, optimizer)
                for action in order.actions
            )
            if not is_trained:
                continue
            if isinstance(target, ast.Name):
                is_used = _is_used(event, target.id)
            else:
                is_used = is_attribute_used(event, program, _READS)
            if is_used:
                continue
            yield at_node(
                event.node,
                event.file,
                f"Nothing steps `{ast.unparse(target)}`, so the learning rate keeps the first "
                f"value of `{describe(made)}`.",
            )


def _is_used(event: Event, name: str) -> bool:
    """Return whether a name is used in its file for more than to read from it."""
    nodes = list(ast.walk(event.file.tree))
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    loads = {node for node in names if isinstance(node.ctx, ast.Load)}
    return bool(loads - find_reads(nodes, _READS)) or _is_exported(event, name)


def _is_exported(event: Event, name: str) -> bool:
    """Return whether other code may reach a name: as a global, an attribute or in `__all__`."""
    return any(
        (isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names)
        or (isinstance(node, ast.Name) and node.id in ("globals", "locals", "vars"))
        or (isinstance(node, ast.Constant) and node.value == name)
        for node in ast.walk(event.file.tree)
    )


class ScheduleNeverSteppedWatcher(ScheduleWatcher):
    """Find schedules that were not stepped in a whole run."""

    def observe(self, run: Script) -> Iterator[Problem]:
        stepped = {id(seen.optimizer()) for seen in run.schedules.seen if seen.steps > 0}
        for seen in run.schedules.seen:
            if seen.steps > 0 or seen.is_part or id(seen.optimizer()) in stepped:
                continue
            # A run of one epoch may end before the first step of a schedule.
            if run.is_whole and seen.optimizer_steps >= _FEWEST and seen.epochs != 1:
                yield seen.report(
                    f"{seen.name} made no step in {seen.optimizer_steps} steps of its optimizer: "
                    "the learning rate kept its first value.",
                    {"optimizer_steps": seen.optimizer_steps},
                )
