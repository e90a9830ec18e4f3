"""Measure the pages of runs: size, processor time to write them, and to draw them in Chromium.

python -m benchmarks.report_page [--steps N] [--runs N] [--peers FOLDER] [--work FOLDER]

The runs are synthetic: a noisy loss with a spike of one step, a gradient norm and a rate in each
step, an evaluation and a checkpoint for each hundredth of the run. Three pages are written, each in
a new process: of a run with a log point for 50 steps, of one with a log point for each step, and of
many runs of 20,000 steps. Chromium's time is that of all its processes, from opening the file until
the window shows it. --peers is a virtual environment with epochix, which reads the printed log of
100 epochs, and TensorBoard and Trackio, which read a loss of each step with the same spike.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tests.browser import Browser, open_browser
from tests.reports.folders import checkpoint, evaluation, log_point, write_run

WRITE = """
import sys, time
from surestep.reports.write import report
report(sys.argv[2:], sys.argv[1])
print(time.process_time())
"""
WRITE_TENSORBOARD = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer, steps = EventFileWriter(sys.argv[1]), int(sys.argv[2])
for step in range(1, steps + 1):
    loss = 50.0 if step == int(steps * 0.654321) else 2 / step
    value = Summary.Value(tag="loss", simple_value=loss)
    writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=[value])))
writer.close()
"""
READ_TRACKIO = """
import json, os, sys
os.environ |= {"TRACKIO_DIR": sys.argv[1], "HF_HUB_OFFLINE": "1"}
import trackio
from trackio.sqlite_storage import SQLiteStorage
steps = int(sys.argv[2])
trackio.init(project="p", name="a", embed=False)
for step in range(1, steps + 1):
    trackio.log({"loss": 50.0 if step == int(steps * 0.654321) else 2 / step}, step=step)
trackio.finish()
found = SQLiteStorage.get_metric_values("p", "a", "loss", max_points=3000)
values = [one["value"] for one in found]
print(json.dumps({"points": len(values), "largest of them": max(values)}))
"""
SHOWN = "return document.readyState === 'complete' && document.querySelector('main') !== null"
DRAWN = (
    "return [...document.querySelectorAll('.chart')].map(f => f.chart).every("
    "chart => !chart.isSeen || chart.isCurrent)"
)
EPOCHIX_EPOCHS = 100
TICKS = os.sysconf("SC_CLK_TCK")


def make_run(folder: Path, steps: int, every: int, *, rate: float = 1e-3, seed: int = 0) -> Path:
    """Write a run folder; see the docstring of this file."""
    drawn = np.random.default_rng(seed)
    losses = 2 / np.sqrt(1 + np.arange(steps) / 1000) + drawn.normal(scale=0.05, size=steps)
    losses[int(steps * 0.654321)] = 50.0
    between = max(every, steps // 100 // every * every)

    def events() -> Iterator[dict[str, object]]:
        for first in range(1, steps + 1, every):
            part = losses[first - 1 : first - 1 + every]
            rates = (rate * (1 - np.arange(first, first + len(part)) / steps)).tolist()
            yield log_point(first, part.tolist(), lr=rates, epoch=first // between)
            last = first + len(part) - 1
            if last % between == 0:
                yield evaluation(last, float(part.mean()), metrics={"val/accuracy": 0.5})
                yield checkpoint(last)

    config = {"optim.lr": rate, "seed": seed}
    written: Path = write_run(
        folder, events(), config=config, decided={**config, "max_grad_norm": 1.0}
    )
    return written


def write_page(page: Path, runs: list[Path]) -> float:
    """Write a page in a new process; return its processor seconds, imports included."""
    words = [sys.executable, "-c", WRITE, str(page), *map(str, runs)]
    return float(subprocess.check_output(words, text=True))


def processor_seconds(parent: int) -> float:
    """Return the processor time of a process and of all below it, without those that ended."""
    children: dict[int, list[int]] = {}
    ticks = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = place.read_text().rpartition(")")[2].split()
            pid = int(place.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = int(fields[11]) + int(fields[12])
    total, waiting = 0, [parent]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total / TICKS


def draw_page(browser: Browser, page: Path) -> dict[str, float]:
    """Open a page; return Chromium's processor seconds for the first screen, and for the charts."""
    browser.open(Path(__file__).parent / "report_page.py")  # forget the page before
    time.sleep(1)
    before = processor_seconds(os.getpid())
    browser.open(page)
    browser.wait_until(lambda: browser.run(SHOWN), "the page")
    time.sleep(0.3)
    first = processor_seconds(os.getpid())
    browser.scroll_to(browser.find_all(".charts")[0])
    browser.wait_until(lambda: browser.run(DRAWN), "the charts")
    time.sleep(0.3)
    return {"first screen": first - before, "with charts": processor_seconds(os.getpid()) - before}


def measure_hiding(browser: Browser) -> dict[str, float]:
    """Return the milliseconds in which a page of runs hides one, and sorts its table."""
    hide = (
        "const box = document.querySelector('label.run input'), start = performance.now();"
        "box.click(); return performance.now() - start"
    )
    sort = (
        "const start = performance.now();"
        "document.querySelectorAll('thead button')[12].click(); return performance.now() - start"
    )
    return {"hides a run, ms": browser.run(hide), "sorts the runs, ms": browser.run(sort)}


def measure_epochix(browser: Browser, peers: Path, work: Path) -> dict[str, float]:
    """Return what epochix needs for the printed log of 100 epochs."""
    log, page = work / "train.log", work / "epochix.html"
    lines = [
        f"Epoch {n}/{EPOCHIX_EPOCHS} loss: {2 / n:.4f} val_loss: {2.1 / n:.4f} accuracy: 0.5"
        for n in range(1, EPOCHIX_EPOCHS + 1)
    ]
    log.write_text("\n".join(lines))
    words = [
        str(peers / "bin/epochix"),
        "run",
        str(log),
        "--headless",
        "--no-llm",
        "--export",
        "html",
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*words, "--output", str(page)],
        env={**os.environ, "HOME": str(work)},
        stdout=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    browser.open(Path(__file__))
    time.sleep(1)
    start = processor_seconds(os.getpid())
    browser.open(page)
    time.sleep(2)
    drawn = processor_seconds(os.getpid()) - start
    return {"write, s": seconds, "MB": page.stat().st_size / 1e6, "drawn": drawn}


def measure_tensorboard(peers: Path, work: Path, steps: int) -> dict[str, float]:
    """Return what TensorBoard needs to serve one loss of each step, and its largest value."""
    python, folder = str(peers / "bin/python"), work / "tensorboard"
    subprocess.run([python, "-c", WRITE_TENSORBOARD, folder, str(steps)], check=True)
    words = ["-m", "tensorboard.main", "--logdir", str(folder), "--port", "6061", "--load_fast"]
    begin = time.perf_counter()
    server = subprocess.Popen(
        [python, *words, "false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = "http://127.0.0.1:6061/data/plugin/scalars/scalars?run=.&tag=loss"
    try:
        last = 0
        while last < steps:
            time.sleep(0.2)
            with contextlib.suppress(OSError), urllib.request.urlopen(address) as answer:
                points = json.load(answer)
                last = points[-1][1]
        return {
            "served after, s (wall)": time.perf_counter() - begin,
            "served after, s": processor_seconds(server.pid),
            "points": len(points),
            "largest of them": max(point[2] for point in points),
        }
    finally:
        server.terminate()
        server.wait()


def measure_trackio(peers: Path, work: Path, steps: int) -> dict[str, float]:
    """Return what Trackio's page gets of a loss of each step."""
    words = [str(peers / "bin/python"), "-c", READ_TRACKIO, str(work / "trackio"), str(steps)]
    found: dict[str, float] = json.loads(subprocess.check_output(words, text=True).splitlines()[-1])
    return found


def _print(page: str, row: Mapping[str, float]) -> None:
    print(json.dumps({"page": page} | {name: round(value, 3) for name, value in row.items()}))


def main() -> None:
    """Measure, and print a line of JSON for each page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--work", type=Path)
    own = parser.parse_args()
    work = own.work or Path(tempfile.mkdtemp(prefix="report-page-"))
    try:
        pages = {
            "1 run, a log point for 50 steps": [make_run(work / "every50", own.steps, 50)],
            "1 run, a log point for each step": [make_run(work / "every1", own.steps, 1)],
            f"{own.runs} runs of 20,000 steps": [
                make_run(work / f"run{n}", 20_000, 50, rate=10.0 ** -(n % 5), seed=n)
                for n in range(own.runs)
            ],
        }
        with open_browser() as browser:
            for name, runs in pages.items():
                page = work / "page.html"
                for _ in range(own.rounds):
                    seconds = write_page(page, runs)
                    row = {"write, s": seconds, "MB": page.stat().st_size / 1e6}
                    row |= draw_page(browser, page)
                    if len(runs) > 1:
                        row |= measure_hiding(browser)
                    _print(name, row)
            if own.peers is not None:
                _print("epochix, 100 epochs", measure_epochix(browser, own.peers, work))
                _print("TensorBoard, 1 curve", measure_tensorboard(own.peers, work, own.steps))
                _print("Trackio, 20,000 steps", measure_trackio(own.peers, work, 20_000))
    finally:
        if own.work is None:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
