"""Attacks on the mirror of a run, and on processes that have a mirror and a tracker."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import Preempted
from surestep.mirror import owner, progress, push, uploader
from tests.mirror.runs import STEPS, StopAt, check_mirror, last_weights, names, train
from tests.mirror.servers import BUCKET, Proxy, s3_environment
from tests.mirror.ssh_server import SSHServer
from tests.mirror.test_s3 import START, create_bucket, impatient
from tests.torture.attack import NO_EFFECT, Act, Attack, Effect, Hosts, Outage
from tests.torture.host_trackers import compare_points
from tests.tracking.proxy import proxy_of
from tests.tuning.kills import RECIPE
from tests.tuning.kills_recipe import PAUSE
from tests.warm import warm_python

STOP_AT = STEPS - 3  # the run is resumed elsewhere from here
KILLS = 2
QUIET = {"logging.progress": "quiet"}
OPTIONS = (
    *("--max-steps", "120", "--checkpoint.every", "10 steps", "--validation.every", "30 steps"),
    *("--logging.every", "5 steps", "--logging.progress", "quiet"),
)


@cache
def plain_weights() -> list[bytes]:
    """Return the last weights of a run without a mirror."""
    with tempfile.TemporaryDirectory() as folder:
        return list(last_weights(train(Path(folder) / "run", **QUIET)))


def interrupt(folder: Path, address: str, begin: Act, end: Act, choose: random.Random) -> Effect:
    """Train during an outage of the mirror, lose the machine, and resume from the mirror."""
    begin_at, end_at = choose.randint(1, 4), choose.randint(5, STOP_AT)

    class Interrupt(surestep.Callback):
        def on_step(self, state: surestep.State, result: object) -> None:
            if state.progress.step == begin_at:
                outage.begin()
            time.sleep(0.1)
            if state.progress.step == end_at:
                outage.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        impatient(patch)
        for module, name, seconds in (
            (uploader, "INTERVAL_S", 0.01),
            (uploader, "LONGEST_PAUSE_S", 0.2),
            (progress, "LONGEST_S", 5.0),
            (push, "RECORDS_S", 0.1),
            (owner, "POLL_S", 0.01),
            (owner, "STALE_S", 0.2),
        ):
            patch.setattr(module, name, seconds)
        outage = Outage(patch, uploader.Uploader, begin, end)
        with suppress(Preempted):
            train(address, callbacks=[Interrupt(), StopAt(STOP_AT)], **QUIET)
        (run,) = Path("runs").iterdir()
        recorded = set(names(run))
        lost = recorded - set(check_mirror(address))
        shutil.rmtree("runs")
        resumed = train(address, seed=3, **QUIET)  # other initial weights
        steps = [event["step"] for event in resumed.events() if event["event"] == "resume"]
        wrong = outage.wrong
        wrong += [] if steps == [STOP_AT] else [f"resumed from {steps}, not from {STOP_AT}"]
        if last_weights(resumed) != plain_weights():
            wrong.append("the weights differ from those of a run without a mirror")
        return Effect(lost=len(lost), wrong=wrong, expected=len(recorded))


@contextmanager
def bucket(hosts: Hosts, endpoint: str) -> Iterator[str]:
    """Have clients use the S3 server by this endpoint; return the address of a new mirror."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(endpoint).items():
            patch.setenv(name, value)
        patch.delenv("AWS_PROFILE", raising=False)
        create_bucket(hosts.s3)
        yield f"s3://{BUCKET}/runs/{time.monotonic_ns()}"


def through_proxy(begin: Callable[[Proxy], None]) -> Attack:
    """Return an attack by a proxy before the S3 server."""

    def made(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
        proxy = Proxy(hosts.s3.endpoint)
        try:
            with bucket(hosts, proxy.endpoint) as address:
                return interrupt(folder, address, lambda: begin(proxy), proxy.restore, choose)
        finally:
            proxy.close()

    return made


def answer_503(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Answer 503 to each request."""
    with proxy_of(hosts.s3.endpoint) as proxy, bucket(hosts, proxy.url) as address:

        def set_unavailable(value: bool) -> None:
            proxy.is_unavailable = value

        return interrupt(
            folder, address, lambda: set_unavailable(True), lambda: set_unavailable(False), choose
        )


def lose_data(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill the S3 server, which loses its data, and start it."""

    def start() -> None:
        hosts.s3.start()
        create_bucket(hosts.s3)

    with bucket(hosts, hosts.s3.endpoint) as address:
        return interrupt(folder, address, hosts.s3.kill, start, choose)


def kill_ssh(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill an SSH server with its connections, and start it."""
    server = SSHServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(server.home))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        try:
            server.start()
            return interrupt(folder, server.address, server.stop, server.start, choose)
        finally:
            server.delete()


def train_process(run: str, *more: str, step_s: float = 0.0) -> subprocess.Popen[str]:
    """Start a process that trains."""
    return subprocess.Popen(
        [warm_python(), "-c", START, RECIPE, "--run", run, *OPTIONS, *more],
        **{"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True},
        env={**os.environ, PAUSE: str(step_s)},
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Wait for a process; return its error, if it has one."""
    _, text = process.communicate(timeout=300)
    return [] if process.returncode == 0 else [f"exit code {process.returncode}: {text[-500:]}"]


def kill_processes(
    hosts: Hosts, folder: Path, choose: random.Random, *, loses_folder: bool
) -> Effect:
    """Kill a run with a mirror and a tracker; it resumes from its folder or the mirror."""
    with pytest.MonkeyPatch.context() as patch, bucket(hosts, hosts.s3.endpoint) as address:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", hosts.mlflow.url)
        patch.setenv("MLFLOW_EXPERIMENT_NAME", "surestep")
        wrong = finish(train_process("plain"))
        more = ["--logging.trackers", "mlflow", "--logging.mlflow_model", "off"]
        run = folder / "run"
        if loses_folder:
            words = [address, *more]
        else:
            words = [str(run), "--checkpoint.mirror", address, *more]
        pattern = f"{'runs/*' if loses_folder else 'run'}/checkpoints/step-*"
        for _ in range(KILLS):
            before = {*Path().glob(pattern)}
            process = train_process(*words, step_s=0.03)
            while not {*Path().glob(pattern)} - before and process.poll() is None:
                time.sleep(0.05)
            time.sleep(choose.uniform(0.0, 1.0))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                wrong.append(f"{NO_EFFECT}: a process ended before the kill")
            if loses_folder:
                shutil.rmtree("runs", ignore_errors=True)
        wrong += finish(train_process(*words))
        if loses_folder:
            (run,) = Path("runs").iterdir()
        effect = Effect() if loses_folder else compare_points(hosts.mlflow.url, run)
        recorded = set(names(run))
        effect.expected += len(recorded)
        effect.lost += len(recorded - set(check_mirror(address)))
        files = [surestep.Run(path).last.path / "model.safetensors" for path in ("plain", run)]
        if files[0].read_bytes() != files[1].read_bytes():
            wrong.append("the weights differ from those of a run that was not killed")
        if not any(event["event"] == "resume" for event in surestep.Run(run).events()):
            wrong.append("no process resumed the run: the kills were too early")
        effect.wrong += wrong
        return effect


def kill_in_place(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill processes that resume from the run folder."""
    return kill_processes(hosts, folder, choose, loses_folder=False)


def kill_machines(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill processes, delete the run folder each time, and resume from the mirror."""
    return kill_processes(hosts, folder, choose, loses_folder=True)


ATTACKS: dict[str, Attack] = {
    "S3 connections closed": through_proxy(Proxy.cut),
    "S3 server hangs": through_proxy(Proxy.hold),
    "S3 answers 503": answer_503,
    "S3 server killed, its data lost": lose_data,
    "SSH server killed": kill_ssh,
    "run killed, resumed in its folder": kill_in_place,
    "run killed with its machine, resumed from S3": kill_machines,
}
