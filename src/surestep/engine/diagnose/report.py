"""A diagnosis in words."""

from surestep.engine.diagnose.bisect import BisectResult, SampleRef
from surestep.engine.diagnose.diagnose import Diagnosis
from surestep.engine.diagnose.history import StepHistory


def describe_diagnosis(diagnosis: Diagnosis, recent: StepHistory | None = None) -> str:
    """Tell what is known of a step that was not finite, in a few sentences.

    Args:
        diagnosis: of the step.
        recent: the steps before, which are told where it is no sample in particular.
    """
    if not diagnosis.reproduced:
        return (
            "Taken again from the same place, the step is finite, so what made it is not known: "
            "something in it is no function of its place, such as a generator of the data's own."
        )
    if diagnosis.cause is None:
        first = "Which operation made it is not known: nothing that torch shows was not finite."
    else:
        first = diagnosis.cause.sentence()
    grown = "" if recent is None or diagnosis.samples.is_specific else recent.describe()
    return f"{first} {describe_samples(diagnosis)} {grown}".strip()


def describe_samples(diagnosis: Diagnosis) -> str:
    """Tell which samples do it, or why none is named."""
    found = diagnosis.samples
    largest = ", ".join(f"{name} {value:.3g}" for name, value in diagnosis.weights.items())
    more = "" if found.known else ", and there may be more"
    if found.is_specific:
        one = len(found.samples) == 1
        return f"{'Sample' if one else 'Samples'} {_listed(found)} did it: {found.how}{more}."
    if found.samples:
        share = f"{len(found.samples)} of its {found.of} samples"
        return (
            f"It is hardly a matter of samples: {share} do it alone{more}. The largest "
            f"weights: {largest}."
        )
    if not found.known:
        return f"Which samples did it is not known: {found.how}."
    return f"No sample in particular did it: {found.how}. The largest weights: {largest}."


def _listed(found: BisectResult, limit: int = 8) -> str:
    shown = ", ".join(map(_named, found.samples[:limit]))
    more = len(found.samples) - limit
    return shown + (f" and {more} more" if more > 0 else "")


def _named(sample: SampleRef) -> str:
    if sample.index is None:
        return f"at position {sample.position}"
    return f"{sample.index} (position {sample.position})"
