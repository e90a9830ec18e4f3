"""A child that has exited is not waited for, whatever it reported before."""

import json
import os
import subprocess
import sys

from tests.torture.warm import ONE_THREAD, REPOSITORY

CODE = """
import json, os
import torch
from tests.torture.forked import Child
torch.set_num_threads(1)
found = []
for words in (b"", b"save 1\\n"):
    child = Child(lambda shared, pipe: os.write(pipe, words))
    reached = [child.wait_for("save 1"), child.wait_for("save 2")]
    while not child.poll():
        pass
    child.kill()
    found.append([*reached, child.code])
    child.close()
print(json.dumps(found))
"""


def test_child_that_exited_without_a_report_is_not_waited_for():
    command = [sys.executable, "-c", CODE]
    env = {**os.environ, **ONE_THREAD}  # only a process with one thread may fork
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, env=env
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[False, False, 0], [True, False, 0]], done.stderr
