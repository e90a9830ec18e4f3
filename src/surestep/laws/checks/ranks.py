"""Two processes with uneven shares of a batch give the gradient of one process, within rounding."""

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from surestep.laws.check import Result, fail, hold, leave_out, leave_untested
from surestep.laws.checks.splitting import (
    BATCH_NORM,
    DRAWS,
    Step,
    find_differences,
    find_source,
    is_rounding_in_float64,
    make_variant,
    redraw,
)
from surestep.laws.compare import Difference
from surestep.laws.processes import Call
from surestep.laws.program import Program
from surestep.laws.run import Recorded, Variant, train
from surestep.laws.runner import Finding, RunFailedError, Runner, get_value

LAW, NAME = "law 1", "ranks"
_RANKS = 2
_HOST = "127.0.0.1"


@dataclass(frozen=True)
class Rank:
    """A process of a group.

    Attributes:
        number: from 0.
        port: on this machine, where the group connects.
    """

    number: int
    port: int

    def train(
        self, program: Program, options: dict[str, Any], variant: Variant, run: Path
    ) -> Recorded:
        """Train as this rank; see `train`."""
        number, size = str(self.number), str(_RANKS)
        os.environ.update(
            {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
            | {"MASTER_ADDR": _HOST, "MASTER_PORT": str(self.port)}
        )
        return train(program, options, variant, run)


def check(runner: Runner) -> Result:
    """Compare the first gradient of one process with that of two."""
    facts = runner.facts
    reasons = [why for why in facts.not_splitting if why != BATCH_NORM]
    if reasons:
        return leave_out(f"Sharing a batch changes the numbers by design: {reasons[0]}.")
    if facts.is_stream:
        return leave_out("Processes share a stream, so its order depends on their number.")
    if facts.has_no_data:
        return leave_out("The step of the Task makes its own data.")
    if facts.has_loader:
        return leave_out(
            "Each process reads batches of the size of the DataLoader, so two have twice the batch."
        )
    if facts.batch_size < _RANKS:
        return leave_out("A batch is one sample, which processes cannot share.")
    size = _choose_batch_size(facts.batch_size)
    try:
        whole, shared = _train_both(runner, size)
    except RunFailedError as error:
        if facts.device == "cpu":
            raise
        return leave_untested(f"The processes compute on the CPU, where the program fails: {error}")
    for difference in find_differences(whole, shared):
        rounds = difference.is_rounding or is_rounding_in_float64(
            lambda: _train_both(runner, size, is_double=True), difference
        )
        if rounds is None:
            return leave_untested(
                f"{difference} The program does not run in float64, which would show whether this "
                "is rounding."
            )
        if not rounds:
            (redrawn,) = runner.train_all([redraw(_choose_whole(runner, size))])
            if next(find_differences(whole, redrawn.notes[0]), None) is not None:
                return leave_untested(f"{DRAWS}, which each process draws for itself.")
            return _fail(difference, whole, shared)
    share = -(-size // _RANKS)
    return hold(f"{_RANKS} processes, with {share} and {size - share} samples of a batch")


def _choose_batch_size(size: int) -> int:
    """Return an odd size, whose shares are uneven."""
    return size - 1 if size % 2 == 0 and size > _RANKS else size


def _fail(difference: Difference, whole: Step, shared: Step) -> Result:
    source = find_source(difference, whole, shared)
    return fail("Two processes change the update", Finding(difference, source))


def _train_both(runner: Runner, size: int, *, is_double: bool = False) -> tuple[Step, Step]:
    """Return the first step of one process, and that of two.

    Raises:
        RunFailedError: a process failed.
        TimeIsOverError: there is no time left.
    """
    whole = _choose_whole(runner, size, is_double=is_double)
    (alone,) = runner.train_all([whole])
    shared = make_variant(-(-size // _RANKS), is_double=is_double)
    shared = _change(replace(shared, name=f"{_RANKS} processes"), _choose_options(runner, size))
    run = runner.make_folder() / "run"
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((_HOST, 0))
        port = reserved.getsockname()[1]
        arguments = (runner.program, runner.facts.options, shared, run)
        calls = [
            Call(Rank(number, port).train, runner.make_folder(), arguments)
            for number in range(_RANKS)
        ]
        outcomes = runner.call_together(*calls)
    ranks: list[Step] = [get_value(outcome, shared.name).notes[0] for outcome in outcomes]
    return alone.notes[0], _join(alone.notes[0], ranks)


def _choose_whole(runner: Runner, size: int, *, is_double: bool = False) -> Variant:
    return _change(make_variant(size, is_double=is_double), _choose_options(runner, size))


def _choose_options(runner: Runner, size: int) -> dict[str, Any]:
    device = {} if runner.facts.device == "cpu" else {"device": "cpu"}
    return {"batch_size": size, **device}


def _change(variant: Variant, options: dict[str, Any]) -> Variant:
    return replace(variant, options={**variant.options, **options})


def _join(whole: Step, ranks: list[Step]) -> Step:
    """Return the step of all ranks: loss and gradients are summed in each, outputs are not.

    The outputs of modules are left out if the ranks had other samples than the one process.
    """
    first = ranks[0]
    got, returned = (
        {name: [tensor for one in steps for tensor in one.get(name, [])] for name in named}
        for named, steps in (
            (whole.inputs, [rank.inputs for rank in ranks]),
            (whole.outputs, [rank.outputs for rank in ranks]),
        )
    )
    if not _is_same(whole.inputs.get("", []), got.get("", [])):
        returned = {}
    return Step(got, returned, first.lines, first.loss, first.gradients)


def _is_same(whole: list[torch.Tensor], shares: list[torch.Tensor]) -> bool:
    if len(whole) != 1 or not shares or not all(tensor.dim() for tensor in shares):
        return False
    if len({tensor.shape[1:] for tensor in (*whole, *shares)}) > 1:
        return False
    return torch.equal(whole[0], torch.cat(shares))
