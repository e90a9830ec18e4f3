"""Attacks on a W&B server, and on processes whose values W&B's service has taken."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import surestep
from surestep.tracking import follower
from tests.torture.attack import NO_EFFECT, Attack, Effect, Hosts
from tests.torture.host_mirrors import KILLS, finish, train_process
from tests.torture.host_trackers import QUICK, SHORT, Step, train
from tests.tracking.proxy import Proxy, proxy_of
from tests.tracking.test_delivery import expected_points
from tests.tracking.test_wandb import losses_of
from tests.tracking.wandb_server import Server, use_server, wandb_server

TEN_SECONDS = SHORT._replace(step_s=0.1)
SENDS_S = 0.5  # between two requests of W&B's service with rows; 15 by default


@contextmanager
def attacked_server(folder: Path) -> Iterator[tuple[Server, Proxy]]:
    """Have W&B's client use a proxy before a server, and put its own files into a folder."""
    with (
        wandb_server() as server,
        proxy_of(server.url) as proxy,
        pytest.MonkeyPatch.context() as patch,
        use_server(patch, proxy.url, folder),
    ):
        patch.setenv("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", str(SENDS_S))
        yield server, proxy


def compare_rows(server: Server, run: Path) -> Effect:
    """Compare the rows that a W&B server has of the only run with its events."""
    (run_id,) = server.runs
    arrived = Counter(losses_of(server.rows(run_id)))
    expected = Counter(expected_points(surestep.Run(run)))
    return Effect(
        lost=(expected - arrived).total(),
        doubled=(arrived - expected).total(),
        expected=expected.total(),
    )


def disturb(folder: Path, server: Server, proxy: Proxy, on_step: Step) -> Effect:
    """Train while a proxy disturbs requests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in QUICK.items():
            patch.setattr(follower, name, seconds)
        train(folder / "run", on_step, TEN_SECONDS, trackers="wandb")
    effect = compare_rows(server, folder / "run")
    effect.wrong += [] if proxy.disturbed else [f"{NO_EFFECT}: no request was disturbed"]
    return effect


def lose_answers(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Lose the answer to each second request with rows."""
    with attacked_server(folder) as (server, proxy):

        def on_step(step: int) -> None:
            sent = [kind for kind in proxy.requests if kind.endswith("/file_stream")]
            if len(sent) % 2 and not proxy.lost:
                proxy.lost.append(sent[0])

        return disturb(folder, server, proxy, on_step)


def answer_503(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Answer 503 to each request in the middle of a run."""
    begin = choose.randint(SHORT.steps // 4, SHORT.steps // 2)
    with attacked_server(folder) as (server, proxy):

        def on_step(step: int) -> None:
            proxy.is_unavailable = begin <= step < begin + SHORT.steps // 3

        return disturb(folder, server, proxy, on_step)


def read_offset(run: Path) -> int:
    """Return how many bytes of the events of a run W&B's service has taken."""
    path = run / "trackers" / "wandb.json"
    return int(json.loads(path.read_bytes())["offset"]) if path.exists() else 0


def kill_runs(hosts: Hosts, folder: Path, choose: random.Random) -> Effect:
    """Kill runs whose values W&B's service has taken, and perhaps sent; the last one finishes."""
    wrong, run = list[str](), folder / "run"
    words = [str(run), "--logging.trackers", "wandb"]
    with attacked_server(folder) as (server, _), pytest.MonkeyPatch.context() as patch:
        patch.delenv("WANDB_SERVICE", raising=False)  # each process has a service
        patch.chdir(folder)
        for _ in range(KILLS):
            before = read_offset(run)
            process = train_process(*words, step_s=0.15)
            while read_offset(run) == before and process.poll() is None:
                time.sleep(0.05)
            time.sleep(choose.uniform(0.0, 1.0))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                wrong.append(f"{NO_EFFECT}: a process ended before the kill")
        wrong += finish(train_process(*words))
        effect = compare_rows(server, run)
    effect.wrong += wrong
    return effect


ATTACKS: dict[str, Attack] = {
    "W&B answers lost": lose_answers,
    "W&B answers 503": answer_503,
    "run killed, W&B has taken its values": kill_runs,
}
