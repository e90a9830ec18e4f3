"""Measure what a mirror costs a step: an S3 server on loopback, or one that does not answer.

python -m benchmarks.mirrors                           # about ten minutes
python -m benchmarks.mirrors --tasks digits --rounds 3 --outage

Each measurement is a fresh process, with and without the mirror in turn. Both save a checkpoint
every 5 seconds, of which the mirror copies each. The S3 server is another process, whose processor
time is not counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.run import pick
from benchmarks.step_time import NAMES, StepTime, describe, measure

SAVE_S = 5
BUCKET = "bucket"
SILENT = "http://127.0.0.1:9"  # nothing listens there
_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@contextmanager
def serve_s3() -> Iterator[str]:
    """Run moto's S3 server with a bucket; yield its address."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            make = f"import s3fs; s3fs.S3FileSystem().mkdir({BUCKET!r})"
            subprocess.run([sys.executable, "-c", make], env=_environment(url), check=True)
            yield url
        finally:
            server.kill()


def _environment(url: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    region = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1"}
    return {**os.environ, **keys, **region, "OMP_NUM_THREADS": "1"}


def run_fresh(name: str, address: str, url: str) -> StepTime:
    """Measure in a fresh process; without a mirror if the address is empty."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mirrors", "--measure", name, address],
        env=_environment(url),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return StepTime(*json.loads(done.stdout.splitlines()[-1]))


def compare(name: str, rounds: int, url: str) -> str:
    """Return the time of a step with a mirror, relative to one without."""
    bare, mirrored = [], []
    for number in range(rounds):
        bare.append(run_fresh(name, "", url))
        mirrored.append(run_fresh(name, f"s3://{BUCKET}/{name}-{number}", url))
    return describe(name, bare, mirrored)


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", default="", help=f"of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    parser.add_argument("--outage", action="store_true", help="the S3 server does not answer")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, address = arguments.measure
        options = {"checkpoint.every": f"{SAVE_S} seconds", "checkpoint.mirror": address or None}
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            print(json.dumps(measure(name, options, Path(folder) / "run", lambda: True)))
        return
    print("with a mirror, relative to a run without; median and its 95% interval:")
    tasks = pick(arguments.tasks, list(NAMES), "task")
    if arguments.outage:
        for name in tasks:
            print(compare(name, arguments.rounds, SILENT), flush=True)
        return
    with serve_s3() as url:
        for name in tasks:
            print(compare(name, arguments.rounds, url), flush=True)


if __name__ == "__main__":
    main()
