"""What happens when a session opens: where the run stands, what is watched."""

from dataclasses import asdict

from surestep.engine.data.stream_loader import describe_resume
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.launcher_env import LaunchInfo, read_launched
from surestep.engine.distributed.rank_status import RankStatus
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Plan
from surestep.engine.profile.profiler import Profile
from surestep.record.checkpoint.encoding import unmatched_states
from surestep.record.progress_display import (
    NullProgress,
    PlainProgress,
    TqdmProgress,
    open_progress,
)
from surestep.record.run_writer import RunWriter
from surestep.trainer.config_diff import table
from surestep.trainer.resume import ResumeDecision
from surestep.trainer.session import Session
from surestep.trainer.spike_rollback import SpikeWatch


def start_session(session: Session, recorder: RunWriter, going: ResumeDecision) -> None:
    """Show where a run stands that was just made or loaded, and what differs from before."""
    own = going.checkpoint if going.branch is None else None
    session.open(_display(session), None if own is None else own.path, finished=going.finished)
    session.loop.notices.append(recorder.notice)
    for text in recorder.warnings:
        recorder.event("notice", step=session.state.progress.step, text=text)
        session.print_line(text)
    if (size := session.loop.world.size) > 1:
        session.print_line(describe_ranks(session.plan, size))
    _watch_profile(session)
    if going.branch is None:
        _tell_where_it_stands(session, recorder)
    else:
        where, path = session.state.progress, going.branch.run.path
        session.print_line(f"{session.run.path} starts from step {where.step} of {path}.")
    if going.judges_anew and not going.finished:
        session.save()  # what is judged anew; and the other run may delete its own
    if going.checkpoint is not None and not going.finished:
        for line in unmatched_states(going.checkpoint.record, session.state):
            session.print_line(line)
    if going.changes:
        session.print_line("\n".join(["What differs from before:", *table(going.changes)]))
    _watch_spikes(session, recorder)


def describe_ranks(plan: Plan, size: int) -> str:
    """Say how many ranks train together, over what, and in which way."""
    way = strategy_class(plan.parallel_strategy).label(plan)
    return f"{size} ranks ({plan.parallel_backend}, {plan.device.type}), {way}."


def _display(session: Session) -> NullProgress | PlainProgress | TqdmProgress:
    """Open the progress display, on rank 0 only."""
    if not session.loop.world.is_first:
        return NullProgress()
    shown = open_progress(session.plan, session.state.progress.step)
    if isinstance(shown, TqdmProgress):
        session.loop.add_callback(shown)
    return shown


def attach_hang_monitor(world: Communicator, session: Session, recorder: RunWriter) -> None:
    """Tell the hang monitor the step, and record its reports as events."""

    def note(text: str, statuses: list[RankStatus]) -> None:
        ranks = [asdict(each) for each in statuses]
        recorder.event("stall", step=session.state.progress.step, text=text, ranks=ranks)

    if world.monitor is not None:
        world.monitor.attach(lambda: session.state.progress.step, note)


def _watch_profile(session: Session) -> None:
    if session.plan.profile is None or session.finished:
        return
    first, last = map(int, session.plan.profile.split(":"))
    if session.state.progress.step >= last:
        step = session.state.progress.step
        session.print_line(f"profile={session.plan.profile!r} is over: step {step} is done.")
    profile = Profile(first, last, session.run.path / "profile", session.loop)
    session.loop.add_callback(profile)
    session.loop.notices.append(profile.notice)


def _tell_where_it_stands(session: Session, recorder: RunWriter) -> None:
    place, folder = session.state.progress, session.run.path
    again = restart_prefix(read_launched())
    if recorder.passed_over:
        reasons = "\n".join(each.reason for each in recorder.passed_over)
        session.print_line(f"{reasons} Going back to the newest that is good: step {place.step}.")
    if session.finished:
        session.print_line(f"{folder} is finished: {place.step} steps are done.")
    elif place.step:
        recorder.event("resume", step=place.step)
        where = f"step {place.step}, epoch {place.epoch + 1}"
        how = describe_resume(session.loop.loader.source, session.plan, place)
        session.print_line(
            f"{again}{'going' if again else 'Going'} on in {folder} from {where}{how}."
        )
    elif recorder.published:
        recorder.event("restart", step=0)
        nothing = "nothing" if again else "Nothing"
        session.print_line(f"{again}{nothing} was saved in {folder} yet: starting anew.")


def restart_prefix(launched: LaunchInfo) -> str:
    """Say which start of the launcher this is, before a sentence; nothing of the first."""
    if not launched.attempt:
        return ""
    return f"Restart {launched.attempt} of {launched.restarts}: "


def _watch_spikes(session: Session, recorder: RunWriter) -> None:
    if session.plan.on_spike == "off" or session.finished:
        return
    session.loop.on_log.append(SpikeWatch(session, recorder))
    if session.plan.on_spike == "rollback" and not session.state.progress.step:
        session.saving.save_async()  # so that there is something to go back to
