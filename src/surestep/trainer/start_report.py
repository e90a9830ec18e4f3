"""What the start of a run writes to its folder and reports to the user."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surestep.base import torch_release
from surestep.base.torch_release import describe_newer
from surestep.config.optim import FOUND
from surestep.engine.data.stream_loader import describe_resume
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Plan
from surestep.engine.task.init_weights import InitReport
from surestep.record.checkpoint.load import unmatched_states
from surestep.record.run_writer import RunWriter
from surestep.trainer.checkpointing import check_disk_space
from surestep.trainer.config_diff import table
from surestep.trainer.planning import PreparedTask, train_samples
from surestep.trainer.resume import ResumeDecision
from surestep.trainer.session import Session


def record_start(
    recorder: RunWriter,
    decision: ResumeDecision,
    planned: PreparedTask,
    session: Session,
    init: InitReport | None,
) -> None:
    """Write what the run is to its folder, on rank 0, before anything is written of its steps."""
    plan = planned.plan
    notes = [check_disk_space(recorder.folder, plan, session.state)]
    size = planned.config.set_options().get("batch_size")
    samples = train_samples(planned.task, plan.exclude_samples)
    if size is not None and samples is not None and size > samples:
        notes.append(
            f"batch_size={size} is larger than the {samples} training samples, so every step "
            f"takes all of them. Use batch_size={samples} or less."
        )
    recorder.warnings += filter(None, notes)
    events = [] if decision.parent is None else [("branch", decision.identity["from"])]
    if decision.changes:
        events.append(("changes", {"changes": [change.as_json() for change in decision.changes]}))
    if planned.range_test is not None:
        events.append(("lr_find", dict(planned.range_test)))
    recorder.start(decision.identity, plan, planned.system, Path.cwd(), events=events)
    if (signature := session.loop.context.signature) is not None:
        recorder.write("signature.json", signature)
    if init is not None:
        recorder.event("init", **asdict(init))


def report_start(
    session: Session,
    recorder: RunWriter,
    decision: ResumeDecision,
    init: InitReport | None,
    found: Mapping[str, Any] | None = None,
) -> None:
    """Report where the run is, and what differs from before; `found` is what found its rate."""
    plan, parent, step = session.plan, decision.parent, session.state.progress.step
    print_line, newer = session.messages.print_line, describe_newer(torch_release.VERSION)
    for text in (*recorder.warnings, *filter(None, [newer])):
        session.messages.notify(text)
    if (size := session.loop.world.size) > 1:
        print_line(describe_ranks(plan, size))
    if parent is None:
        _report_progress(session, recorder)
    else:
        print_line(f"{session.run.path} starts from step {step} of {parent}.")
    if decision.checkpoint is not None and not session.finished:
        for line in unmatched_states(decision.checkpoint.record, session.state):
            print_line(line)
    if found is not None:
        print_line(f"optim.lr={plan.optim_lr:.3g}, {FOUND}: {found['why']}.")
    if "balanced" in plan.loss:
        print_line(f"{plan.loss}: {plan.reason('loss')}")
    if decision.changes:
        print_line("\n".join(["What differs from before:", *table(decision.changes)]))
    if init is not None:
        print_line(init.sentence())


def describe_ranks(plan: Plan, size: int) -> str:
    """Return a line with the number of ranks, their backend and device, and the strategy."""
    strategy = strategy_class(plan.parallel_strategy).label(plan)
    return f"{size} ranks ({plan.parallel_backend}, {plan.device.type}), {strategy}."


def _report_progress(session: Session, recorder: RunWriter) -> None:
    progress, folder = session.state.progress, session.run.path
    print_line = session.messages.print_line
    launched = session.system.launched
    restart = f"Restart {launched.attempt} of {launched.restarts}: " if launched.attempt else ""
    if recorder.passed_over:
        reasons = "\n".join(corrupt.reason for corrupt in recorder.passed_over)
        print_line(f"{reasons} Going back to the newest good one: step {progress.step}.")
    if session.finished:
        print_line(f"{folder} is finished: {progress.step} steps are done.")
    elif progress.step:
        recorder.event("resume", step=progress.step)
        how = describe_resume(session.loop.loader.source, session.plan, progress)
        is_last = progress.step >= session.plan.total_steps
        where = "which is the last" if is_last else f"epoch {progress.epoch + 1}"
        print_line(f"{restart}Resuming {folder} from step {progress.step}, {where}{how}.")
    elif recorder.published:
        recorder.event("restart", step=0)
        print_line(f"{restart}Starting from scratch: {folder} has no checkpoint yet.")
