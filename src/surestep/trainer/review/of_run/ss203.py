"""SS203: parameters that never had a gradient."""

from collections.abc import Iterator

from surestep.doctor.problem import Problem
from surestep.doctor.wording import list_names
from surestep.trainer.review.case import Case

_FEWEST = 20  # steps


def find(case: Case) -> Iterator[Problem]:
    """Find parameters that never had a gradient, so that no step updated them."""
    steps, state = case.observed.steps, case.loop.state
    if steps < _FEWEST or not case.loop.context.strategy.has_param_grads:
        return
    updated = {id(p) for optimizer in state.optimizers.values() for p in optimizer.state}
    if case.task.step is not None and not updated:
        return  # a manual step may clear the gradients before the log point
    names = [name for name, p in case.observed.no_gradient.items() if id(p) not in updated]
    if not names:
        return
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    yield Problem(
        f"{len(names)} trained parameter{'s' if len(names) > 1 else ''} of {list_names(layers)} "
        f"never had a gradient in {steps} steps, so they have their initial values.",
        {"parameters": names, "layers": layers, "steps": steps},
        "Use them in the forward pass, check for a detach() or no_grad() before them, or remove or "
        "freeze them.",
    )
