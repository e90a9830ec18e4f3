"""At the end of a finished run, the learning rate is not near its end.

A schedule is planned for a number of steps. If the run takes fewer, the rate is still high at the
end, and the last steps, which usually give the lowest loss, are missing. The number of steps was
computed from the wrong epochs, data or ranks, the own loop ends early, or many steps were skipped:
a skipped step does not advance the schedule.

Runs that an early stop or a callback ends are not reported.

Ignore it if you ended the run on purpose.

Source: https://arxiv.org/abs/2405.18392
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark

if TYPE_CHECKING:
    from surestep.doctor.case import Case

SEVERITY = "info"
FIX = "Set max_steps (or epochs) to the length of the run, or find out why steps are skipped."
_SHARE = 0.95  # of the planned steps: a run with more of them is complete
_ABOVE = 0.1  # of the peak: nearer to the last rate is near
ALSO = ("SS609",)  # an example has this mistake too


def review(case: Case) -> Iterator[Remark]:
    """Compare the last rate with that of the last planned step."""
    from surestep.engine.schedule.lr import make_lr_factor

    loop, plan = case.loop, case.loop.plan
    has_own_rates = case.task.schedule is not None or case.task.step is not None
    if not case.is_finished or loop.stopping is not None or has_own_rates:
        return
    taken, total = loop.state.progress.steps_taken, int(plan.schedule.total)
    if not 0 < taken < _SHARE * total:
        return
    factor = make_lr_factor(plan.schedule, loop.state.plateau, None)
    now, end = factor(taken - 1), factor(total - 1)
    if now - end <= _ABOVE:
        return
    skipped = loop.state.progress.step - taken
    of_skipped = f" ({skipped} more were skipped)" if skipped else ""
    yield Remark(
        f"The schedule is planned for {total} steps, and the run took {taken}{of_skipped}: the "
        f"last learning rate was {now:.0%} of the peak, and its end is {end:.0%}.",
        {"steps": taken, "planned": total, "skipped": skipped, "last": now, "end": end},
    )


def bad_loop_that_ends_early() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    data = (x, x.sum(1, keepdim=True))
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data)
    schedule = surestep.Schedule(name="cosine")
    config = surestep.Config(epochs=20, batch_size=8, schedule=schedule, max_grad_norm="off")
    with surestep.prepare(task, config, run="run") as session:
        for result in session.steps():
            if result.step == 40:
                break
        session.end("finished")


def bad_steps_of_another_batch_size() -> None:
    import torch

    import surestep

    x = torch.randn(256, 4)
    y = x.sum(1, keepdim=True)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y))
    schedule = surestep.Schedule(name="linear")
    config = surestep.Config(max_steps=256 // 8, schedule=schedule, max_grad_norm="off")
    with surestep.prepare(task, config, run="run") as session:
        for rows in torch.arange(256).split(32):
            session.train_step([(x[rows], y[rows])])
        session.end("finished")


def bad_skipped_steps() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    x[:8] = float("nan")
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y))
    config = surestep.Config(
        max_steps=60,
        batch_size=8,
        schedule=surestep.Schedule(name="cosine"),
        on_nonfinite="skip",
        max_grad_norm="off",
    )
    surestep.Trainer(task, config, run="run").fit()


def good_all_steps() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    schedule = surestep.Schedule(name="cosine")
    config = surestep.Config(max_steps=40, batch_size=8, schedule=schedule, max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()


def good_early_stop() -> None:
    import torch

    import surestep

    x = torch.randn(96, 4)
    y = torch.randn(96, 1)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:64], y[:64]), val=(x[64:], y[64:]))
    config = surestep.Config(
        max_steps=2000,
        batch_size=8,
        schedule=surestep.Schedule(name="cosine"),
        max_grad_norm="off",
        validation=surestep.Validation(every="2 steps"),
        early_stop=surestep.EarlyStop(patience=2),
    )
    surestep.Trainer(task, config, run="run").fit()


def good_constant_rate() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    data = (x, x.sum(1, keepdim=True))
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data)
    schedule = surestep.Schedule(name="constant", warmup="0 steps")
    config = surestep.Config(epochs=20, batch_size=8, schedule=schedule, max_grad_norm="off")
    with surestep.prepare(task, config, run="run") as session:
        for result in session.steps():
            if result.step == 40:
                break
        session.end("finished")
