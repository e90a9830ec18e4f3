"""Findings: what the rules find in a run, by what was measured."""

import math
from collections.abc import Iterator

import numpy as np

from surestep.doctor.case import Case
from surestep.doctor.finding import Finding
from surestep.doctor.rule import load_rules

_FLAT_STEPS = 100  # below which a loss may still start to fall
_FLAT = 0.01  # of the first loss: a smaller fall is none
_SOLVED = 1e-6  # a first loss below it cannot fall
_STANDARD_ERRORS = 3.0  # of a difference of means


def find(case: Case) -> list[Finding]:
    """Return what the rules find. Their errors are caught, since the end must be written."""
    findings: list[Finding] = list(loss_is_flat(case))
    for rule in load_rules():
        try:
            findings += rule.review(case)
        except Exception as error:  # of the user's objects
            text = f"This could not be checked: {type(error).__name__}: {error}."
            findings.append(Finding(rule.code, rule.name, "info", "", 0, 1, text))
    return findings


def describe(finding: Finding) -> str:
    """Return a finding as a line of output."""
    start = f"{finding.rule} {finding.name} ({finding.severity})"
    return f"{start}: {finding.message} {finding.fix}".rstrip()


def loss_is_flat(case: Case) -> Iterator[Finding]:
    """Find a training loss that never fell, measured against its own noise."""
    losses = case.observed.losses[case.observed.losses[:, 0] > 0]
    steps, n_bins = int(losses[:, 0].sum()), len(losses)
    saw_all = case.observed.first_step == 1 and case.task.step is None
    if not saw_all or steps < _FLAT_STEPS or n_bins < 4:
        return
    quarter, start = np.arange(n_bins) * 4 // n_bins, losses[0, 1] / losses[0, 0]
    sums = np.stack([losses[quarter == number].sum(axis=0) for number in range(4)])
    means, squares = sums[:, 1] / sums[:, 0], sums[:, 2] / sums[:, 0]
    errors = np.maximum(squares - means**2, 0.0) / sums[:, 0]  # squared standard errors
    at = 1 + int(means[1:].argmin())
    first, lowest, noise = float(means[0]), float(means[at]), math.sqrt(errors[0] + errors[at])
    enough = max(_STANDARD_ERRORS * noise, _FLAT * abs(first))
    if abs(start) < _SOLVED or max(first, start) - lowest > enough:
        return
    lr = case.loop.plan.optim_lr
    yield Finding(
        "SS408",
        "loss-is-flat",
        "warning",
        "",
        0,
        1,
        f"The training loss did not fall in {steps} steps: {first:.4g} in the first quarter, "
        f"{lowest:.4g} at best after it (noise {noise:.2g}).",
        {"first": first, "lowest": lowest, "noise": noise, "steps": steps},
        "Check that the model can learn 32 samples (`surestep train RECIPE --overfit 32`), and "
        f"check the learning rate{f' ({lr:g})' if lr else ''}, the targets, and whether the loss "
        "reaches every layer.",
    )
