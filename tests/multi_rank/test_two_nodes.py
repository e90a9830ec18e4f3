"""Two network namespaces act as two machines; the link between them is cut during training."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from surestep.record.run import Run
from tests.multi_rank.torchrun import last_weights, resumed_from
from tests.warm import warm_python

HERE = f"surestep-{os.getpid()}"
NODES = {"left": "10.77.0.1", "right": "10.77.0.2"}
OPTIONS = ["--parallel.timeout-s", "6"]
WAIT_S = 240.0  # ends a test that hangs, even on a busy machine
PORT = 29511  # each pair of namespaces has its own ports


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def link(node: str) -> str:
    return f"{node[0]}{os.getpid()}"


def make() -> None:
    for node in NODES:
        ip("netns", "add", f"{HERE}-{node}")
    ip("link", "add", link("left"), "type", "veth", "peer", "name", link("right"))
    for node, address in NODES.items():
        ip("link", "set", link(node), "netns", f"{HERE}-{node}")
        ip("-n", f"{HERE}-{node}", "addr", "add", f"{address}/24", "dev", link(node))
        ip("-n", f"{HERE}-{node}", "link", "set", "lo", "up")
        ip("-n", f"{HERE}-{node}", "link", "set", link(node), "up")


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    """Create both machines; delete them at the end."""
    try:
        make()
        yield
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        text = f"needs root and apt-get install iproute2 util-linux: {error}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(text)
    finally:
        for node in NODES:  # this deletes the link too
            with suppress(FileNotFoundError):
                subprocess.run(["ip", "netns", "del", f"{HERE}-{node}"], capture_output=True)


Started = dict[str, subprocess.Popen[bytes]]


def start(folder: Path, where: dict[str, list[str]], deaths: str) -> Started:
    """Call torchrun on both machines, with the output in files."""
    started = {}
    for node in NODES:
        named = ["unshare", "--uts", "sh", "-c", f'hostname {node} && exec "$@"', "sh"]
        torchrun = [warm_python(), "-m", "torch.distributed.run", "--nnodes", "2"]
        child = ["-m", "tests.multi_rank.restarted_runs", str(folder), *OPTIONS]
        said = {"DEATHS": deaths, "SLOW_SAVES": "0", "LINK": link(node), "OMP_NUM_THREADS": "1"}
        with (folder / node).open("w") as output:
            started[node] = subprocess.Popen(
                ["ip", "netns", "exec", f"{HERE}-{node}", *named, *torchrun, *where[node], *child],
                stdout=output,
                stderr=output,
                cwd=Path(__file__).parents[2],
                env={**os.environ, **said, "GLOO_SOCKET_IFNAME": link(node)},
            )
    return started


def end(started: Started) -> None:
    """Kill all processes on both machines."""
    for node, torchrun in started.items():
        words = ["ip", "netns", "pids", f"{HERE}-{node}"]
        for pid in subprocess.run(words, capture_output=True, text=True).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        torchrun.wait()


def wait_for_text(file: Path, text: str) -> None:
    """Wait until a file has a text, at most as long as for the end of a machine."""
    until = time.monotonic() + WAIT_S
    while text not in file.read_text() and time.monotonic() < until:
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cut(nodes, tmp_path_factory) -> Path:
    """Cut the link after step 5; restore it when one side has ended."""
    folder = tmp_path_factory.mktemp("nodes")
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{NODES['left']}:{PORT}"]
    where = {
        node: [*meeting, "--rdzv-conf", f"is_host={int(node == 'left')}", "--local-addr", address]
        for node, address in NODES.items()
    }
    started = start(folder, where, "cut@5")
    try:
        assert started["left"].wait(WAIT_S) == 1, (folder / "left").read_text()[-4000:]
        # Without a link the other side gives up by itself, later if the machine is busy.
        wait_for_text(folder / "right", "ParallelError")
        # torchrun asks its store for the number of machines, and waits for an answer.
        ip("-n", f"{HERE}-right", "link", "set", link("right"), "up")
        assert started["right"].wait(WAIT_S) == 1, (folder / "right").read_text()[-4000:]
    finally:
        end(started)
    return folder


@pytest.mark.parametrize(("node", "other"), [("left", "right"), ("right", "left")])
def test_job_with_a_cut_link_ends_and_names_the_machine(cut, node, other):
    said = (cut / node).read_text()
    assert re.search(rf"ParallelError: .* gave up after 6 s of waiting.*node . '{other}'", said), (
        said
    )


def test_job_resumes_to_the_same_weights_when_the_link_is_back(cut, tmp_path):
    folder = shutil.copytree(cut, tmp_path / "again")
    assert Run(folder / "killed").status["status"] == "failed"
    numbered = ["--master-addr", NODES["left"], "--master-port", str(PORT + 1), "--node-rank"]
    started = start(folder, {node: [*numbered, str(n)] for n, node in enumerate(NODES)}, "")
    try:
        for node, each in started.items():
            assert each.wait(WAIT_S) == 0, (folder / node).read_text()[-4000:]
    finally:
        end(started)
    assert resumed_from(folder / "killed") == [4]
    assert torch.equal(last_weights(folder / "killed"), last_weights(folder / "whole"))
