"""Run all cases on each rank, one after another, in one launch by `launcher.py`."""

import gc
import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import surestep
from surestep.base.errors import Preempted
from surestep.engine.distributed.gloo_threads import count_gloo_threads
from surestep.trainer.fit import fit
from tests.multi_rank import deepspeed_engine
from tests.multi_rank.cases import (
    CASES,
    OF_PARTS,
    POISONED,
    half,
    own_batches,
    result,
    task,
    trained,
)
from tests.multi_rank.first_batches import unheld
from tests.multi_rank.on_four import ON_FOUR
from tests.multi_rank.shard_options import ON_PARTS, run
from tests.multi_rank.sharded_kinds import CUT, SHARDS, frozen_by_code, shards
from tests.multi_rank.strategies import CROSSED, SHOWN, WAYS, cells, resume_cells
from tests.multi_rank.training_kinds import KINDS, OF_RANKS, REFUSED, resume_stream

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class StopOnOne(surestep.Callback):
    """Requests a stop after step 5, on the last rank only."""

    def on_step(self, state, outcome):
        return surestep.Request.STOP if RANK == RANKS - 1 and outcome.step == 5 else None


class PauseOnOne(surestep.Callback):
    """Requests a pause after step 5, on the last rank only, from `on_log`."""

    def on_log(self, state, point):
        last = point.first_step + len(point.loss) - 1
        return surestep.Request.PAUSE if RANK == RANKS - 1 and last == 5 else None


class SignalOnOne(surestep.Callback):
    """Sends SIGTERM to the last rank only, in step 4."""

    def on_batch(self, state, batch):
        if RANK == RANKS - 1 and state.progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(folder: Path) -> dict[str, Any]:
    config = surestep.Config(max_steps=20, batch_size=20, logging={"progress": "quiet"})
    with surestep.prepare(task(), config, run=folder, callbacks=[StopOnOne()]) as session:
        steps = [each.step for each in session.steps()]
    return {"steps": steps, **result(session)}


def left_by(callback: surestep.Callback, folder: Path) -> dict[str, Any]:
    """Fit until a request or signal of one rank stops all ranks; the run is resumable."""
    logging = {"progress": "quiet", "every": "5 steps"}
    config = surestep.Config(max_steps=20, batch_size=20, logging=logging)
    with surestep.prepare(task(), config, run=folder, callbacks=[callback]) as session:
        write = session._recorder.status
        if RANK == 0:  # delay the write: other ranks must not read the status before
            session._recorder.status = lambda *status, **more: (
                time.sleep(0.3),
                write(*status, **more),
            )
        try:
            fit(session)
        except Preempted:
            return {"status": session.run.status["status"], **result(session)}
    return {"status": "not stopped", **result(session)}


def interrupt_and_resume(folder: Path) -> dict[str, Any]:
    """Stop after 7 steps with a checkpoint, and resume in a new session."""
    half(folder)
    return trained(folder, task())


def mirrored(folder: Path) -> dict[str, Any]:
    """Stop after 7 steps, and resume from the mirror on a machine that has nothing else.

    "shown" has the threads that copy the run.
    """
    address = f"file://{folder}/mirror"
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):
        half(address)
        if RANK == 0:
            shutil.rmtree("runs")
        return trained(address, task(), shows=lambda _: mirror_threads())


def mirror_threads() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith("surestep-mirror")}


def told(folder: Path) -> dict[str, Any]:
    """Return what a rank prints on stderr while it trains, and the threads of groups it leaves."""
    config = surestep.Config(max_steps=4, batch_size=20, logging={"progress": "plain"})
    printed = io.StringIO()
    with (
        redirect_stderr(printed),
        surestep.prepare(task(), config, run=folder) as session,
    ):
        list(session.steps())
    return {**result(session), "printed": printed.getvalue(), "threads": count_gloo_threads()}


def with_ddp_option(folder: Path, option: str) -> dict[str, Any]:
    """Train with an option of DDP, on micro-batches of 3."""
    return trained(folder, task(), micro_batch_size=3, parallel={option: True})


def crossed(out: Path, begun: str, way: str) -> dict[str, Any]:
    """Resume with one strategy what the same number of ranks started with another."""
    folder = out / f"half of {begun} as {way}"
    if RANK == 0:
        shutil.copytree(out / f"half of {begun}", folder)
    return resume_cells(RANKS)[way].run(folder, WAYS[way])


LINEAR = torch.nn.functional.linear
DDPS_OWN = ("static_graph", "find_unused_parameters")
OTHERS = {
    **{name: partial(with_ddp_option, option=name) for name in DDPS_OWN},
    "told": told,
    **POISONED,
    **{"stopped": stopped, "half": half},
    "signalled": lambda folder: left_by(SignalOnOne(), folder),
    "paused": lambda folder: left_by(PauseOnOne(), folder),
    **{"gone on": interrupt_and_resume, "mirrored": mirrored},
}


Act = tuple[Any, Callable[[], Any]]


def of_any_number(out: Path) -> Iterator[Act]:
    """Yield the cases of each number of ranks, with their names."""
    every = {**CASES, **KINDS, **OF_RANKS, **REFUSED, **OTHERS}
    for name in every if RANKS == 2 else sorted(ON_FOUR, key=list(every).index):
        yield name, partial(every[name], out / name)
    for name, cell in cells(RANKS).items():
        train = cell.shown if name[1:] in SHOWN else cell.run
        yield name, partial(train, out / "-".join(name), WAYS[cell.way])
    for cut, kind in shards(RANKS):
        act = partial(SHARDS[kind], out / f"{cut} {kind}", parallel=CUT[cut])
        yield ("sharded", cut, kind), act
    yield "own batches", partial(own_batches, out / "own batches")
    for begun in out.glob("begun by *"):
        yield begun.name, partial(trained, begun, task())
    yield "stream begun by one", partial(resume_stream, out / "stream begun by one")


def of_two(out: Path) -> Iterator[Act]:
    """Yield the cases of exactly two ranks."""
    for name, case in ON_PARTS.items():
        yield ("on parts", name), partial(run, out / f"on parts {name}", case, many=True)
    for name, failing in OF_PARTS.items():
        act = partial(failing, out / f"{name} in parts", parallel={"strategy": "fsdp"})
        yield ("in parts", name), act
    by_zero = [(stage, f"zero-{stage}", {}) for stage in range(4)]
    by_zero += [(stage, f"zero-{stage} bf16", deepspeed_engine.BF16) for stage in (1, 2)]
    for stage, name, said in by_zero:
        if stage and not said:
            by_stage = deepspeed_engine.options(stage)
            yield f"{name} frozen", partial(frozen_by_code, out / f"{name} frozen", **by_stage)
            replaced = partial(unheld, out / f"{name} unheld", is_replaced=True, **by_stage)
            yield f"{name} unheld", replaced
        yield f"{name} gone on", partial(deepspeed_engine.gone_on, out / name, stage, **said)
        yield (
            f"{name} skipped",
            partial(deepspeed_engine.skipped, out / f"{name}-skipped", stage, **said),
        )
    yield "timed", partial(deepspeed_engine.timed, out / "timed")
    for kind in ("ddp", "deepspeed"):
        yield ("buffers", kind), partial(deepspeed_engine.buffers, out / f"buffers of {kind}", kind)


def goes_on(out: Path) -> Iterator[Act]:
    """Yield the cases in which each strategy resumes its own runs and those of others."""
    for name, cell in resume_cells(RANKS).items():
        way, own, again = WAYS[name], out / f"half of {name}", out / f"again {name}"
        cell.half(own, way)
        if RANK == 0:
            shutil.copytree(own, again)
        yield ("measured", name), partial(cell.measured, own, way)
        yield ("again", name), partial(cell.run, again, way)
        for begun in sorted(out.glob(f"* goes on as {name}")):
            yield ("goes on", begun.name), partial(cell.run, begun, way)
    for begun, way in CROSSED if RANKS == 2 else ():
        yield ("goes on", f"two as {begun} goes on as {way}"), partial(crossed, out, begun, way)


def main(out: Path) -> None:
    found: dict[Any, Any] = {}
    of_these = of_two(out) if RANKS == 2 else ()
    for name, act in chain(of_any_number(out), of_these, goes_on(out)):
        try:
            found[name] = act()
        except BaseException as error:
            error.add_note(f"in the case {name!r}")
            raise
        gc.collect()  # frees the process groups of a case with their threads
        gc.freeze()  # excludes results and imported objects from later collections
    found["linear is torch's own"] = torch.nn.functional.linear is LINEAR
    torch.save(found, out / f"rank-{RANK}.pt")
