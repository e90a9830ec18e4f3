"""What a loss is a mean over, as its values on a batch and on its parts show."""

from collections.abc import Callable, Sequence

from surestep.engine.checks.terms import Term
from surestep.engine.losses.adapt import Loss


def explain(loss: Loss, whole: Term, parts: Sequence[Term], name: str, *, varied: bool) -> str:
    """Return the error for a loss that does not add up, with what to type instead.

    Args:
        loss: as it is declared.
        whole: the loss of some samples.
        parts: the loss of disjoint parts of them.
        name: of the loss, where there are several.
        varied: the outputs were varied at random.
    """
    found = sum(each.total for each in parts)
    divisor = whole.items if loss.divides else 1.0
    number = "" if len(parts) != 2 else "two "
    how = " (outputs varied at random)" if varied else ""
    declared = "a mean over its items" if loss.divides else "a sum"
    called = "loss that the model computes" if loss.kind in ("model", "in training") else "loss"
    gives = (
        f"The {called} is not {declared}: "
        f"{whole.samples} samples give {whole.total / divisor:.6g}, and their {number}parts put "
        f"together {found / divisor:.6g}{how}. "
    )
    for mend, weight in _DECLARATIONS:
        if _adds_up(whole, parts, weight):
            return gives + mend(loss, name)
    count = _task("items", "a function of the batch that counts them", name)
    return gives + (
        f"Say what it is a mean over, {count}, or Task(loss_is_separable=False) where it "
        "compares samples."
    )


Weight = Callable[[Term], float | None]


def _adds_up(whole: Term, parts: Sequence[Term], weight: Weight) -> bool:
    """Tell whether the values, each times its weight, add up."""
    weights = [weight(each) for each in (whole, *parts)]
    if any(each is None for each in weights):
        return False
    totals = [
        each.value * w
        for each, w in zip((whole, *parts), weights, strict=True)
        if w  # a part without items may be NaN
    ]
    scale = sum(map(abs, totals))
    tolerance = max(each.tolerance for each in (whole, *parts))
    return abs(2 * totals[0] - sum(totals)) <= tolerance * scale


def _say_sum(loss: Loss, name: str) -> str:
    return (
        "It is a sum over samples. Divide it by the number of samples, or keep the sum: "
        f"{_task('reduction', repr('sum'), name)}."
    )


def _say_tokens(loss: Loss, name: str) -> str:
    return (
        f"It is a mean over the targets that are not -100: {_task('items', repr('tokens'), name)}."
    )


def _say_samples(loss: Loss, name: str) -> str:
    option = "items" if loss.divides else "reduction"
    return f"It is a mean over samples, the default: leave {option} out."


def _task(option: str, value: str, name: str) -> str:
    return f"Task({option}={{{name!r}: {value}}})" if name else f"Task({option}={value})"


_DECLARATIONS: list[tuple[Callable[[Loss, str], str], Weight]] = [
    (_say_sum, lambda term: 1.0),
    (_say_samples, lambda term: term.samples),
    (_say_tokens, lambda term: term.tokens),
]
