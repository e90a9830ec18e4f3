"""The same run, repeated, computes the same bits."""

from surestep.laws.check import Result, fail, hold
from surestep.laws.compare import Difference, compare_records
from surestep.laws.run import Variant
from surestep.laws.runner import Finding, Runner, get_value

LAW, NAME = "check", "same again"
_REPETITIONS = 9  # with the first run they are ten
_FORK = Variant("nothing changed")
_NEW = Variant("a new interpreter", is_new_interpreter=True)


def check(runner: Runner) -> Result:
    """Repeat the run in forks, and in a new interpreter."""
    repeated = runner.train_all([_FORK] * _REPETITIONS)
    base = runner.base.record
    differences = [compare_records(base, other.record) for other in repeated]
    found = [difference for difference in differences if difference is not None]
    if found:
        times = f"{len(found)} of {_REPETITIONS} repetitions differ"
        return fail(f"The same run again is not the same: {times}", _explain(runner, found, _FORK))
    note = runner.explain_why_not_pickled()
    if not note:
        (outcome,) = runner.call(runner.make_call(_NEW))
        if outcome.error:
            note = outcome.error
        else:
            difference = compare_records(base, get_value(outcome, _NEW.name).record)
            if difference is not None:
                text = (
                    "A new interpreter, whose sets have a different order, computes other numbers"
                )
                return fail(text, _explain(runner, [difference], _NEW))
    if note:
        text = f"{_REPETITIONS} repetitions in forks; not in a new interpreter, since {note}"
        return hold(text)
    return hold(f"{_REPETITIONS} repetitions, and one in a new interpreter")


def _explain(runner: Runner, found: list[Difference], variant: Variant) -> Finding:
    first = min(found, key=lambda difference: difference.place.step)
    return runner.explain(first, variant)
