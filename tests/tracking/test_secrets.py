"""Tokens and passwords of the environment are in no file of a run, with all trackers."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.multi_rank.torchrun import free_port
from tests.needs import needs
from tests.warm import warm_python

MARK = "5ecre7mark"
RECIPE = """
import os
import torch
from torch import nn
import surestep

config = surestep.Config(max_steps=12, batch_size=4, data={"shuffle": False})

def task(poison: int = -1):
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    val = (x.clone(), x[:, :1].clone())
    if poison >= 0:
        x[poison] = float("nan")
    return surestep.Task(nn.Linear(3, 1), "mse", (x, x[:, :1]), val=val)
"""
FAILING = """
class Fails(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 9:
            url = "https://me:" + os.environ["REGISTRY_PASSWORD"] + "@registry.example/v2"
            raise OSError(f"{url} answered 401 to {os.environ['HF_TOKEN']}")

callbacks = [Fails()]
"""


START = """
import sys
from surestep.tracking import follower
follower.STALLED_S = float(sys.argv[1])
from surestep.cli.main import main
sys.exit(main(["train", *sys.argv[2:]]))
"""


def environment(folder, tracking_uri):
    names = ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "HF_TOKEN"]
    names += ["MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "GITHUB_TOKEN", "PGPASSWORD"]
    names += ["REGISTRY_PASSWORD", "SOME_SETTING", "OPENAI_API_KEY", "SLURM_JWT"]
    secrets = {name: f"{MARK}{number:030}" for number, name in enumerate(names)}
    return {
        **os.environ,
        **secrets,
        "DATABASE_URL": f"postgresql://me:{MARK}@db.example/runs",
        "HTTPS_PROXY": f"http://me:{MARK}@127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        "MLFLOW_TRACKING_URI": tracking_uri,
        "WANDB_MODE": "offline",
        "HOME": str(folder / "home"),
    }


@pytest.fixture
def project(tmp_path):
    """Return a git repository whose remote has a token, with a recipe."""
    needs("mlflow")
    needs("wandb")
    project = tmp_path / "project"
    project.mkdir()
    (project / "recipe.py").write_text(RECIPE)
    (project / "failing.py").write_text(RECIPE + FAILING)
    remote = f"https://me:{MARK}@git.example/me/project.git"
    author = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (
        ["init", "-q"],
        ["remote", "add", "origin", remote],
        ["add", "."],
        [*author, "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)
    return project


def files_with_the_mark(folder):
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file() and not path.is_symlink() and MARK.encode() in path.read_bytes():
            data = path.read_bytes()
            at = data.index(MARK.encode())
            found[str(path.relative_to(folder))] = data[max(0, at - 80) : at + 20]
    return found


def train(project, recipe, tracking_uri, *words, stalled_s=20.0):
    trackers = [word for name in ("tensorboard", "mlflow", "wandb") for word in ("--track", name)]
    command = [warm_python(), "-c", START, str(stalled_s), recipe, "--run", "run", *trackers]
    return subprocess.run(
        [*command, "--logging.every", "2 steps", *words],
        cwd=project,
        env=environment(project.parent, tracking_uri),
        capture_output=True,
        text=True,
        timeout=300,
    )


CASES = {
    "finished": ("recipe.py", [], 0),
    "incident": ("recipe.py", ["--task.poison", "30"], 1),
    "exception": ("failing.py", [], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_run_folder_has_no_secret(project, case):
    recipe, words, code = CASES[case]
    store = project.parent / "mlflow.db"
    done = train(project, recipe, f"sqlite:///{store}", *words)
    assert (done.returncode != 0) == (code != 0), done.stderr[-2000:]
    run = project / "run"
    assert {path.name for path in run.iterdir()} >= {"tensorboard", "wandb", "trackers"}
    assert files_with_the_mark(run) == {}
    assert files_with_the_mark(project.parent / "home") == {}
    assert MARK.encode() not in store.read_bytes()
    if case == "incident":
        assert list(run.glob("incidents/*/*"))


def test_address_of_a_server_that_does_not_answer_is_masked(project):
    done = train(project, "recipe.py", f"http://me:{MARK}@127.0.0.1:{free_port()}", stalled_s=5.0)
    assert done.returncode == 0
    assert "mlflow lacks " in done.stderr
    assert MARK not in done.stderr + done.stdout
    assert files_with_the_mark(project / "run") == {}
