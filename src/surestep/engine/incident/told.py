"""A diagnosis in words."""

from surestep.engine.incident.diagnose import Diagnosis
from surestep.engine.incident.samples import Found, Sample


def told(diagnosis: Diagnosis) -> str:
    """Tell what is known of a step that was not finite, in a few sentences."""
    if not diagnosis.reproduced:
        return (
            "Taken again from the same place, the step is finite, so what made it is not known: "
            "something in it is no function of its place, such as a generator of the data's own."
        )
    if diagnosis.cause is None:
        first = "Which operation made it is not known: nothing that torch shows was not finite."
    else:
        first = diagnosis.cause.sentence()
    return f"{first} {samples_told(diagnosis)}"


def samples_told(diagnosis: Diagnosis) -> str:
    """Tell which samples do it, or why none is named."""
    found = diagnosis.samples
    if found.samples:
        one = len(found.samples) == 1
        more = "" if found.known else ", and there may be more"
        return f"{'Sample' if one else 'Samples'} {_listed(found)} did it: {found.how}{more}."
    if not found.known:
        return f"Which samples did it is not known: {found.how}."
    largest = ", ".join(f"{name} {value:.3g}" for name, value in diagnosis.weights.items())
    return f"No sample in particular did it: {found.how}. The largest weights: {largest}."


def _listed(found: Found, limit: int = 8) -> str:
    shown = ", ".join(map(_named, found.samples[:limit]))
    more = len(found.samples) - limit
    return shown + (f" and {more} more" if more > 0 else "")


def _named(sample: Sample) -> str:
    if sample.index is None:
        return f"at position {sample.position}"
    return f"{sample.index} (position {sample.position})"
