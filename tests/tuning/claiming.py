"""A worker without training, in a process of its own: `python -m tests.tuning.claiming`.

    claim FOLDER URL        claim, report and finish trials until there is none; print their numbers
    retry FOLDER URL TRIAL  retry a trial, given as JSON; print whether this worker was first

It prints "ready" once the study is open, and starts when a line arrives on stdin.
"""

import json
import subprocess
import sys
from pathlib import Path

from surestep.tuning.open import read_study
from surestep.tuning.rows import ClaimedTrial
from surestep.tuning.study import SearchStudy
from tests.warm import warm_python


def claim_all(study: SearchStudy) -> list[int]:
    claimed = []
    while (trial := study.claim_trial()) is not None:
        assert study.beat(trial)
        study.report(trial, 1, 0.5)
        assert study.finish(trial, [trial.params["optim.lr"]], 1.0)
        claimed.append(trial.number)
    return claimed


def run_workers(count: int, command: str, *words: str) -> list:
    """Start workers, let all begin at the same moment, and return what each printed."""
    workers = [
        subprocess.Popen(
            [warm_python(), "-m", "tests.tuning.claiming", command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            worker.stdin.write("start\n")
            worker.stdin.flush()
        printed = [worker.communicate(timeout=120)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * count
    return [json.loads(text) for text in printed]


def main() -> None:
    command, folder, url, *words = sys.argv[1:]
    study = read_study(Path(folder), url)
    print("ready", flush=True)
    sys.stdin.readline()
    if command == "claim":
        print(json.dumps(claim_all(study)))
    else:
        print(json.dumps(study.retry(ClaimedTrial(**json.loads(words[0])))))


if __name__ == "__main__":
    main()
