"""A schedule is made, but nothing steps it.

The learning rate keeps the first value of the schedule for the whole run. With a warm-up, that is
close to 0. Nothing fails: `scheduler.step` without parentheses is a valid line too.

Ignore it if the schedule is stepped by code that reaches it differently, such as through the
optimizer.

Source: https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.schedules import ScheduleWatcher
from surestep.doctor.source.attributes import find_reads, is_attribute_used
from surestep.doctor.source.order import Order
from surestep.doctor.source.schedules import TORCH, creations
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_made_by, is_same
from surestep.doctor.watcher import Observation, Run

SEVERITY = "error"
FIX = "Call scheduler.step() after optimizer.step(), for each batch or each epoch as it counts."

# What does not step a schedule.
_READS = frozenset("state_dict load_state_dict get_last_lr last_epoch get_lr base_lrs".split())
_FEWEST = 5  # steps of the optimizer


def check(program: Program) -> Iterator[Problem]:
    """Find schedules in a variable that is not used, beside steps of their optimizer."""
    for trace in program.traces:
        order = Order(trace)
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
                action.kind in ("step", "scaler_step")
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
            yield Problem(
                event.node,
                event.file,
                f"Nothing steps `{ast.unparse(target)}`, so the learning rate keeps the first "
                f"value of `{describe(made)}`.",
            )


def _is_used(event: Event, name: str) -> bool:
    """Return whether a name is used in its file for more than to read from it."""
    nodes = list(ast.walk(event.file.tree))
    reads = find_reads(nodes, _READS)
    names = {
        node
        for node in nodes
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    }
    return bool(names - reads) or _is_exported(event, name)


def _is_exported(event: Event, name: str) -> bool:
    """Return whether other code may reach a name: as a global, an attribute or in `__all__`."""
    return any(
        (isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names)
        or (isinstance(node, ast.Name) and node.id in ("globals", "locals", "vars"))
        or (isinstance(node, ast.Constant) and node.value == name)
        for node in ast.walk(event.file.tree)
    )


class Watch(ScheduleWatcher):
    """Find schedules that were not stepped in a whole run."""

    def observe(self, run: Run) -> Iterator[Observation]:
        stepped = {id(seen.optimizer()) for seen in run.schedules.seen if seen.steps > 0}
        for seen in run.schedules.seen:
            if seen.steps > 0 or seen.is_part or id(seen.optimizer()) in stepped:
                continue
            # A run of one epoch may end before the first step of a schedule.
            if run.is_whole and seen.optimizer_steps >= _FEWEST and seen.epochs != 1:
                yield Observation(
                    seen.location,
                    f"{seen.name} made no step in {seen.optimizer_steps} steps of its optimizer: "
                    "the learning rate kept its first value.",
                    seen.made_at + 1,
                    {"optimizer_steps": seen.optimizer_steps},
                )


def bad_loop() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    print(scheduler.get_last_lr())


def bad_not_called() -> None:
    import torch
    from torch.optim.lr_scheduler import CosineAnnealingLR

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    lr_scheduler = CosineAnnealingLR(optimizer, T_max=5)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        lr_scheduler.step  # noqa: B018


def bad_in_function() -> None:
    import torch

    def train(model: torch.nn.Module, epochs: int) -> torch.nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01)
        for _ in range(epochs):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
        return model

    train(torch.nn.Linear(4, 1), 5)


def bad_in_class() -> None:
    import torch

    class Trainer:
        def __init__(self, model: torch.nn.Module) -> None:
            self.model = model
            self.optimizer = torch.optim.AdamW(model.parameters())
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

        def train(self, epochs: int) -> None:
            for epoch in range(epochs):
                for _ in range(4):
                    self.optimizer.zero_grad()
                    self.model(torch.randn(8, 4)).pow(2).mean().backward()
                    self.optimizer.step()
                print(epoch, self.scheduler.get_last_lr())

    Trainer(torch.nn.Linear(4, 1)).train(3)


def good_loop() -> None:
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()


def good_part_of_another() -> None:
    import torch
    from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup = LinearLR(optimizer, total_iters=2)
    rest = ConstantLR(optimizer, factor=1.0)
    schedule = SequentialLR(optimizer, [warmup, rest], milestones=[2])
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        schedule.step()


def good_in_function() -> None:
    import torch

    def step_all(objects: list[object]) -> None:
        for option in objects:
            option.step()  # type: ignore[attr-defined]

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        step_all([scheduler])
