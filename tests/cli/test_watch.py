"""`surestep watch`: the script runs as it would, and the findings are printed at the end."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from surestep.cli import watch as module
from surestep.doctor.watch.report import Report
from tests.forked import run_forked
from tests.warm import warm_python

COMMAND = Path(sys.executable).with_name("surestep")
SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
print(sys.argv[1:], __name__, repr(model.weight.tolist()))
{end}
"""
# What a script finds at its start: paths, a class that it and torch script, warnings, signals.
ENVIRONMENT = """
import signal, warnings
import torch.distributed.optim

def double(x: int) -> int:
    return 2 * x

@torch.jit.script
class Pair:
    def __init__(self, x: int):
        self.x = double(x)

warnings.warn('mine')
warnings.warn('old', FutureWarning)
print(sys.path, __file__)
print(Pair(2).x)
print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN)
"""


def write(folder, end=""):
    path = folder / "script.py"
    path.write_text(SCRIPT.format(end=end))
    return path


def watch(folder, *words):
    return run_forked(folder, "watch", *words)


def start(folder, *command):
    """Run a command whose caller ignores a signal in a new process, for what its start decides."""
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    )


def test_script_starts_and_prints_as_without_watch(tmp_path, monkeypatch):
    """Check also a rank without a launcher that merges reports: it shows its own."""
    (tmp_path / "scripts").mkdir()
    write(tmp_path / "scripts", ENVIRONMENT)
    words = ("scripts/script.py", "--lr", "3")
    alone = start(tmp_path, sys.executable, *words)
    assert alone.stdout.endswith("4\nTrue\n")
    assert "UserWarning: mine\n  warnings.warn('mine')" in alone.stderr
    watched = start(tmp_path, COMMAND, "watch", "--json", "out.json", *words)
    assert (watched.returncode, watched.stdout) == (0, alone.stdout), watched.stderr
    assert watched.stderr.startswith(alone.stderr)
    assert "SS101 missing-zero-grad  " in watched.stderr
    assert "Gradients grew from 30 batches" in watched.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["version"] == 1
    (finding,) = found["findings"]
    assert (finding["rule"], finding["line"]) == ("SS101", 12)
    assert finding["file"].endswith("script.py")
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    watched = start(tmp_path, warm_python(), "-m", "surestep", "watch", *words)
    assert watched.stdout == alone.stdout
    assert watched.stderr.startswith(alone.stderr)


@pytest.mark.parametrize(
    ("end", "options", "code", "message"),
    [
        ("raise ValueError('broken')", [], 1, "ValueError: broken"),
        ("sys.exit(7)", [], 7, ""),
        ("sys.exit('stopped')", [], 1, "stopped"),
        ("raise KeyboardInterrupt", [], 130, "raise KeyboardInterrupt\nKeyboardInterrupt\n"),
        ("", ["--fail-on", "error"], 1, ""),
        ("", ["--fail_on", "error"], 1, ""),
        ("sys.exit(7)", ["--fail-on", "error"], 7, ""),
    ],
)
def test_exit_code_is_that_of_the_script_and_findings_are_printed(
    tmp_path, end, options, code, message
):
    write(tmp_path, end)
    watched = watch(tmp_path, *options, "script.py")
    assert watched.returncode == code
    assert message in watched.stderr
    assert "SS101" in watched.stderr
    assert "surestep/cli" not in watched.stderr


def test_traceback_begins_in_a_script_whose_folder_is_named_surestep(tmp_path):
    folder = tmp_path / "surestep"
    folder.mkdir()
    write(folder, "raise ValueError('broken')")
    err = watch(tmp_path, "surestep/script.py").stderr
    assert 'script.py", line' in err
    assert "watch.py" not in err


def test_module_is_run_as_python_does(tmp_path):
    write(tmp_path)
    assert "SS101" in watch(tmp_path, "-m", "script", "--lr", "3").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No script is given"),
        (["missing.py"], "There is no file 'missing.py'"),
        (["--json", "none/a.json", "script.py"], "There is no folder"),
        (["--steps", "0", "script.py"], "--steps 0 is less than 1"),
        (["--select", "SS99", "script.py"], "There is no rule 'SS99'. `surestep explain` lists"),
        (["--select", "SS115", "script.py"], "SS115: watch cannot see this; `surestep explain SS1"),
        (["--bogus", "script.py"], "no option '--bogus' of watch. Known: --json, "),
        (["--step", "3", "script.py"], "'--step' of watch. Did you mean '--steps'"),
        (["a.ipynb"], "jupyter nbconvert --to script a.ipynb"),
        (["--select", "SS1", "SS506", "script.py"], "by commas: --select SS1,SS506"),
    ],
)
def test_wrong_use_is_explained(tmp_path, words, message):
    write(tmp_path)
    (tmp_path / "a.ipynb").write_text("{}")
    done = watch(tmp_path, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_script_without_a_step_is_not_called_correct(tmp_path):
    (tmp_path / "script.py").write_text("print(1)\n")
    done = watch(tmp_path, "script.py")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "no optimizer of PyTorch took a step in this process" in done.stderr
    done = watch(tmp_path, "--fail-on", "error", "--json", "out.json", "script.py")
    assert done.returncode == 1
    assert json.loads((tmp_path / "out.json").read_text())["watching"] == "no step"


def test_script_that_fails_before_its_first_step_is_not_called_one_without(tmp_path):
    (tmp_path / "script.py").write_text("raise ValueError('no data')\n")
    done = watch(tmp_path, "script.py")
    assert done.returncode == 1
    assert "ValueError: no data" in done.stderr
    assert done.stderr.endswith(
        "surestep watch: the script ended before its first step, so nothing was watched.\n"
    )
    assert "nothing found" not in done.stderr


def test_help_names_the_script(tmp_path):
    done = watch(tmp_path, "--help")
    assert done.returncode == 0
    assert "surestep watch [-h] [OPTIONS] SCRIPT [ARGUMENT ...]" in done.stdout
    assert "--json FILE" in done.stdout


def test_steps_that_were_watched_are_counted(tmp_path):
    write(tmp_path)
    assert "1 finding in 5 steps" in watch(tmp_path, "--steps", "5", "script.py").stderr


def test_file_of_findings_is_in_the_folder_of_the_command(tmp_path):
    (tmp_path / "other").mkdir()
    write(tmp_path, "import os\nos.chdir('other')")
    assert watch(tmp_path, "--json", "out.json", "script.py").returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())["findings"]


@pytest.mark.parametrize(
    ("options", "end", "code"),
    [
        ([], "sys.exit(7)", 7),
        ([], "", 0),
        (["--select", "SS304", "--fail-on", "error"], "", 1),
    ],
)
def test_file_that_cannot_be_written_leaves_the_exit_code(tmp_path, options, end, code):
    (tmp_path / "out").mkdir()
    write(tmp_path, f"import os\nos.rmdir('out')\n{end}")
    done = watch(tmp_path, *options, "--json", "out/out.json", "script.py")
    assert done.returncode == code
    assert done.stderr.endswith("out/out.json cannot be written: No such file or directory.\n")


def test_report_is_printed_if_the_script_replaces_stderr(tmp_path):
    write(tmp_path, "import io\nsys.stderr = io.StringIO()\nsys.exit(13)")
    done = watch(tmp_path, "script.py")
    assert (done.returncode, "SS101" in done.stderr) == (13, True)


def test_rule_that_failed_is_reported(capsys, monkeypatch):
    module._show(Report([], 3, {"SS101": "ValueError: no"}))
    assert "SS101 is disabled by an error in it: ValueError: no\n" in capsys.readouterr().err


def test_comment_in_the_script_suppresses_a_finding(tmp_path):
    path = write(tmp_path)
    comment = "  # surestep: ignore[SS101] the sum is wanted"
    path.write_text(path.read_text().replace(".step()", f".step(){comment}"))
    done = watch(tmp_path, "--fail-on", "error", "script.py")
    assert (done.returncode, "SS101" in done.stderr) == (0, False), done.stderr


@pytest.mark.slow("imports torch in new processes")
def test_finding_is_in_the_script_where_torch_is_on_pythonpath(tmp_path, monkeypatch):
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "torch").symlink_to(Path(torch.__file__).parent)
    libraries = [str(tmp_path / "libraries"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(libraries))
    loop = SCRIPT[SCRIPT.index("model = ") : SCRIPT.index("print(")]
    summed = loop.replace(".step()", ".step()  # surestep: ignore[SS101] sum")
    path = write(tmp_path, f"{summed}print(torch.__file__)")
    done = start(tmp_path, COMMAND, "watch", "script.py")
    assert str(tmp_path / "libraries") in done.stdout
    line = 1 + path.read_text().splitlines().index("    optimizer.step()")
    assert re.findall(r"SS101 missing-zero-grad  script\.py:(\d+)", done.stderr) == [str(line)]


def test_misspelt_comment_beside_a_finding_is_reported(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text().replace(".step()", ".step()  # surestep: disable[SS101]"))
    done = watch(tmp_path, "script.py")
    assert "SS101" in done.stderr
    note = "the comment suppresses nothing. Write `# surestep: ignore[SS101] reason`."
    assert done.stderr.count(note) == 1, done.stderr
