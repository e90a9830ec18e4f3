"""What each rank does, started by torchrun: all cases, one after another, in one launch."""

import io
import os
import shutil
import signal
import sys
import time
import warnings
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import surestep
from surestep.base.errors import Stopped
from surestep.trainer.fit import fit
from tests.multi_rank import zero
from tests.multi_rank.cases import (
    CASES,
    OF_PARTS,
    POISONED,
    half,
    net,
    own_batches,
    result,
    task,
    trained,
)
from tests.multi_rank.kinds import KINDS, OF_RANKS, REFUSED, stream_gone_on
from tests.multi_rank.on_parts import ON_PARTS, run
from tests.multi_rank.shards import CUT, SHARDS, shards
from tests.multi_rank.ways import CROSSED, WAYS, cells, goings_on

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class StopOnOne(surestep.Callback):
    """Asks to stop after step 5, on the last rank alone."""

    def on_step(self, state, outcome):
        return surestep.Request.STOP if RANK == RANKS - 1 and outcome.step == 5 else None


class SignalOnOne(surestep.Callback):
    """Sends SIGTERM to the last rank alone, in step 4."""

    def on_batch(self, state, batch):
        if RANK == RANKS - 1 and state.place.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(folder: Path) -> dict[str, Any]:
    config = surestep.Config(max_steps=20, batch_size=20, logging={"progress": "quiet"})
    with surestep.prepare(task(), config, run=folder, callbacks=[StopOnOne()]) as session:
        steps = [each.step for each in session.steps()]
    return {"steps": steps, **result(session)}


def signalled(folder: Path) -> dict[str, Any]:
    config = surestep.Config(max_steps=20, batch_size=20, logging={"progress": "quiet"})
    with surestep.prepare(task(), config, run=folder, callbacks=[SignalOnOne()]) as session:
        write = session._recorder.status
        if RANK == 0:  # a slow disk: no other rank may read the status before it is written
            session._recorder.status = lambda *status, **more: (
                time.sleep(0.3),
                write(*status, **more),
            )
        try:
            fit(session)
        except Stopped:
            return {"status": session.run.status["status"], **result(session)}
    return {"status": "not stopped", **result(session)}


def interrupted_and_gone_on(folder: Path) -> dict[str, Any]:
    """Stop after 7 steps with a checkpoint, and go on in another session."""
    half(folder)
    return trained(folder, task())


class Warns(surestep.Callback):
    """Warns on all ranks and on the last alone, and prints on each."""

    def on_step(self, state, outcome):
        if outcome.step == 2:
            warnings.warn("each rank warns", stacklevel=1)
            print(f"by hand on rank {RANK}", file=sys.stderr)
        if outcome.step == 2 and RANK == RANKS - 1:
            warnings.warn("one rank warns", stacklevel=1)


def warning_net() -> nn.Module:
    """Warn where the ranks do not know of each other yet."""
    warnings.warn("each rank warns early", stacklevel=1)
    return net()


def told(folder: Path, **logging: Any) -> dict[str, Any]:
    """Return what a rank prints on stderr while it trains."""
    config = surestep.Config(max_steps=4, batch_size=20, logging={"progress": "plain", **logging})
    printed = io.StringIO()
    with redirect_stderr(printed), warnings.catch_warnings():
        warnings.simplefilter("always")
        made = task(model=warning_net)
        with surestep.prepare(made, config, run=folder, callbacks=[Warns()]) as session:
            list(session.steps())
    return {**result(session), "printed": printed.getvalue()}


def with_ddps_own(folder: Path, option: str) -> dict[str, Any]:
    """Train with an option of DDP's own, on micro-batches of 3."""
    return trained(folder, task(), micro_batch_size=3, parallel={option: True})


def crossed(out: Path, begun: str, way: str) -> dict[str, Any]:
    """Go on in one way with what as many ranks began in another."""
    folder = out / f"half of {begun} as {way}"
    if RANK == 0:
        shutil.copytree(out / f"half of {begun}", folder)
    return goings_on(RANKS)[way].run(folder, WAYS[way])


LINEAR = torch.nn.functional.linear
DDPS_OWN = ("static_graph", "find_unused_parameters")
OTHERS = {
    **{name: partial(with_ddps_own, option=name) for name in DDPS_OWN},
    **{"told": told, "told to files": lambda folder: told(folder, ranks="all")},
    **POISONED,
    **{"stopped": stopped, "signalled": signalled, "half": half},
    **{"gone on": interrupted_and_gone_on},
}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    cases = {**CASES, **KINDS, **OF_RANKS, **REFUSED, **OTHERS}
    found: dict[Any, Any] = {name: case(out / name) for name, case in cases.items()}
    for name, cell in cells(RANKS).items():
        found[name] = cell.run(out / "-".join(name), WAYS[cell.way])
    for name, case in ON_PARTS.items() if RANKS == 2 else ():
        found["on parts", name] = run(out / f"on parts {name}", case, many=True)
    for cut, kind in shards(RANKS):
        found["sharded", cut, kind] = SHARDS[kind](out / f"{cut} {kind}", parallel=CUT[cut])
    for name, failing in OF_PARTS.items() if RANKS == 2 else ():
        found["in parts", name] = failing(out / f"{name} in parts", parallel={"kind": "fsdp"})
    found["own batches"] = own_batches(out / "own batches")
    for begun in out.glob("begun by *"):
        found[begun.name] = trained(begun, task())
    for stage in range(4 if RANKS == 2 else 0):
        found[f"zero-{stage} gone on"] = zero.gone_on(out / f"zero-{stage}", stage)
        found[f"zero-{stage} skipped"] = zero.skipped(out / f"zero-{stage}-skipped", stage)
    for stage in (1, 2) if RANKS == 2 else ():
        name = f"zero-{stage} bf16"
        found[f"{name} gone on"] = zero.gone_on(out / name, stage, **zero.BF16)
        found[f"{name} skipped"] = zero.skipped(out / f"{name}-skipped", stage, **zero.BF16)
    if RANKS == 2:
        found["timed"] = zero.timed(out / "timed")
    for kind in ("ddp", "deepspeed") if RANKS == 2 else ():
        found["buffers", kind] = zero.buffers(out / f"buffers of {kind}", kind)
    for way, cell in goings_on(RANKS).items():
        cell.half(out / f"half of {way}", WAYS[way])
        found["measured", way] = cell.measured(out / f"half of {way}", WAYS[way])
        cell.half(out / f"again {way}", WAYS[way])
        found["again", way] = cell.run(out / f"again {way}", WAYS[way])
        for begun in sorted(out.glob(f"* goes on as {way}")):
            found["goes on", begun.name] = cell.run(begun, WAYS[way])
    for begun, way in CROSSED if RANKS == 2 else ():
        found["goes on", f"two as {begun} goes on as {way}"] = crossed(out, begun, way)
    found["stream begun by one"] = stream_gone_on(out / "stream begun by one")
    found["linear is torch's own"] = torch.nn.functional.linear is LINEAR
    torch.save(found, out / f"rank-{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
