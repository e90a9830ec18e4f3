"""Mistakes with schedules of the learning rate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.planters.base import (
    in_same_block,
    optimizer_steps,
    plants,
    schedule_steps,
)
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, Site, View


@plants("SS301", "SR")
def schedule_before_the_step(view: View) -> Iterator[Edit]:
    for schedule in schedule_steps(view):
        for step in optimizer_steps(view):
            if in_same_block(schedule, step):
                yield lambda schedule=schedule, step=step: schedule.move_before(step)


@plants("SS301", "SR", skip=("early_stopping",))
def schedule_at_the_start_of_the_epoch(view: View) -> Iterator[Edit]:
    for schedule in schedule_steps(view):
        loops = schedule.loops
        if len(loops) == 1 and schedule.block is loops[0].body:

            def edit(schedule: Site = schedule, block: list[ast.stmt] = loops[0].body) -> None:
                schedule.remove()
                block.insert(0, schedule.node)

            yield edit


@plants("SS302", "SR", only=("resume", "workers", "finetune", "functions"))
def step_epochs_per_batch(view: View) -> Iterator[Edit]:
    for schedule in schedule_steps(view):
        for step in optimizer_steps(view):
            is_inner = len(step.loops) > len(schedule.loops) or view.script.name == "finetune"
            if schedule.function is step.function and is_inner:
                yield lambda schedule=schedule, step=step: schedule.move_after(step)


@plants("SS302", "SR", only=("one_cycle",))
def epoch_schedule_for_batches(view: View) -> Iterator[Edit]:
    for name, option in (("CosineAnnealingLR", "T_max=n_epochs"), ("StepLR", "step_size=1")):
        yield from view.rewrite(
            "torch.optim.lr_scheduler.OneCycleLR(_o, **_k)",
            f"torch.optim.lr_scheduler.{name}(_o, {option})",
        )


@plants("SS303", "SR", only=("one_cycle", "streaming", "accelerate_loop"))
def step_batches_per_epoch(view: View) -> Iterator[Edit]:
    for schedule in schedule_steps(view):
        loops = schedule.loops
        if len(loops) >= 2:

            def edit(schedule: Site = schedule, loop: ast.AST = loops[-1]) -> None:
                inner = next(s for s in view.statements() if s.node is loop)
                schedule.remove()
                inner.block.insert(inner.index + 1, schedule.node)

            yield edit


@plants("SS304", "SR", only=("early_stopping",))
def plateau_of_the_epoch(view: View) -> Iterator[Edit]:
    for value in ("epoch", "optimizer.param_groups[0]['lr']"):
        yield from view.rewrite("scheduler.step(val_loss)", f"scheduler.step({value})")


@plants("SS304", "S", only=("early_stopping",), runs=False)
def plateau_of_nothing(view: View) -> Iterator[Edit]:
    yield from view.rewrite("scheduler.step(val_loss)", "scheduler.step()")


@plants("SS305", "SR")
def never_step_the_schedule(view: View) -> Iterator[Edit]:
    for schedule in schedule_steps(view):
        yield schedule.remove


@plants("SS307", "R", only=("one_cycle",))
def plan_more_steps(view: View) -> Iterator[Edit]:
    options = "_o, max_lr=_m, epochs=_e, steps_per_epoch=len(_l)"
    for longer in (
        "epochs=_e, steps_per_epoch=len(_l.dataset)",
        "epochs=3 * _e, steps_per_epoch=len(_l)",
    ):
        yield from view.rewrite(
            f"torch.optim.lr_scheduler.OneCycleLR({options})",
            f"torch.optim.lr_scheduler.OneCycleLR(_o, max_lr=_m, {longer})",
        )


@plants("SS307", "R", only=("several_files",))
def plan_more_epochs(view: View) -> Iterator[Edit]:
    name = "torch.optim.lr_scheduler.CosineAnnealingLR"
    yield from view.rewrite(f"{name}(_o, T_max=_t)", f"{name}(_o, T_max=100)")


@plants("SS308", "SR", only=("resume",))
def do_not_restore_the_schedule(view: View) -> Iterator[Edit]:
    for site in view.calls("scheduler.load_state_dict(_a)"):
        yield site.remove


@plants("SS308", "SR", only=("resume",))
def do_not_save_the_schedule(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for site in list(view.calls("scheduler.load_state_dict(_a)")):
            site.remove()
        for tree in view.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Dict):
                    keep = [
                        i
                        for i, key in enumerate(node.keys)
                        if not (isinstance(key, ast.Constant) and key.value == "scheduler")
                    ]
                    made = ast.Dict([node.keys[i] for i in keep], [node.values[i] for i in keep])
                    become(node, made)

    yield edit
