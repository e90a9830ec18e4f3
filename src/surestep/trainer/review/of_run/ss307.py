"""SS307: a learning rate that did not reach the end of its schedule."""

from collections.abc import Iterator

from surestep.doctor.limits import ABOVE_END, COMPLETE_SHARE
from surestep.doctor.problem import Problem
from surestep.engine.schedule.lr import make_lr_factor
from surestep.trainer.review.case import Case


def find(case: Case) -> Iterator[Problem]:
    """Compare the last rate with that of the last planned step."""
    loop, plan = case.loop, case.loop.plan
    has_own_rates = case.task.schedule is not None or case.task.step is not None
    if not case.is_finished or loop.requests.stopping is not None or has_own_rates:
        return
    taken, total = loop.state.progress.steps_taken, int(plan.schedule.total)
    if not 0 < taken < COMPLETE_SHARE * total:
        return
    factor = make_lr_factor(plan.schedule, loop.state.plateau, None)
    now, end = factor(taken - 1), factor(total - 1)
    if now - end <= ABOVE_END:
        return
    skipped = loop.state.progress.step - taken
    of_skipped = f" ({skipped} more were skipped)" if skipped else ""
    yield Problem(
        f"The schedule is planned for {total} steps, and the run took {taken}{of_skipped}: the "
        f"last learning rate was {now:.0%} of the peak, and its end is {end:.0%}.",
        {"steps": taken, "planned": total, "skipped": skipped, "last": now, "end": end},
    )
