"""A Python that lacks what Windows lacks."""

import json
import subprocess
import sys

from tests.cli.conftest import environment
from tests.forked import python_forked

WINDOWS = """
import os, signal, sys

for module in ("fcntl", "resource"):
    sys.modules[module] = None
for name in ("SIGHUP", "SIGUSR1", "pthread_sigmask"):
    delattr(signal, name)
for name in ("EX_TEMPFAIL", "sched_getaffinity", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"):
    delattr(os, name)

if __name__ == "__main__":  # a process that checks files imports this too
    import json
    import surestep
    from surestep.cli.main import main

    codes = [main(words) for words in json.loads(sys.argv[1])]
    try:
        surestep.Trainer
    except surestep.SurestepError as error:
        print(error, codes, sep="\\n")
"""
SCRIPT = """
import torch
from torch import nn

x, y = torch.randn(64, 4), torch.arange(64) % 2
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
ERROR = (
    "Training and run folders need Linux or macOS; under Windows, use WSL. The commands check, "
    "explain and watch run here."
)


def start_python(folder, *words):
    """Run `python FILE` in a new process."""
    # In /tmp, what killed processes left is removed unless `os.name` is that of Windows.
    own, options = environment() | {"TMPDIR": str(folder)}, {"capture_output": True, "text": True}
    return subprocess.run([sys.executable, *words], cwd=folder, env=own, check=False, **options)


def run(folder, *commands, start=start_python):
    (folder / "script.py").write_text(SCRIPT)
    (folder / "windows.py").write_text(WINDOWS)
    done = start(folder, "windows.py", json.dumps(commands))
    *out, error, codes = done.stdout.splitlines()
    assert error == ERROR, done.stderr
    return json.loads(codes), "\n".join(out), done.stderr


def test_windows_checks_and_explains_and_says_where_training_runs(tmp_path):
    for number in range(60):  # in several processes
        (tmp_path / f"file_{number}.py").write_text("import torch\n")
    commands = ["explain", "SS101"], ["check", "."], ["train", "digits"], ["resume", "r"]
    codes, out, err = run(tmp_path, *commands)
    assert codes == [0, 1, 2, 2]
    assert "SS101" in out
    assert "in 62 files" in out
    assert err == f"ConfigError: {ERROR}\n" * 2


def test_windows_watches(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    watch = ["watch", "--json", "found.json", "script.py"]
    codes, _, err = run(tmp_path, watch, start=python_forked)
    assert codes == [0], err
    assert "stopped watching" not in err
    assert "SS101" in (tmp_path / "found.json").read_text()
