"""Train a recipe with surestep and by its ejected script, and compare the weights."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import surestep
from surestep.eject.script import print_script
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.system import read_system
from surestep.recipes.load import RecipeCall, call_recipe, load
from surestep.trainer.session import Session
from tests.forked import fork
from tests.multi_rank.torchrun import check_ended_well, launch

_COUNT = count()
QUIET = {"logging.progress": "quiet"}
DATA = '''
import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import surestep

config = surestep.Config(max_steps=12, batch_size=16)


def rows(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs (samples, 10) and classes (samples,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 10, generator=generator)
    return x, torch.randint(0, 3, (samples,), generator=generator)


def numbers(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return inputs (samples, 10) and three shares of each (samples, 3)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 10, generator=generator)
    return x, torch.rand(samples, 3, generator=generator)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of correct classes."""
    return (outputs.argmax(dim=1) == targets).float().mean()


def functional_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return functional.cross_entropy(outputs, targets)


def weights() -> dict[str, Tensor]:
    """Return the weights of a different network."""
    generator = torch.Generator().manual_seed(4)
    values = network().state_dict()
    return {
        name: torch.rand(value.shape, generator=generator).to(value.dtype)
        for name, value in values.items()
    }


class Noisy(nn.Module):
    """Add noise from the generators of Python and numpy, in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 10) to (batch, 3)."""
        import random

        import numpy

        noise = random.random() + numpy.random.rand() if self.training else 0.0
        return self.layer(x + noise)


class Augmented(Dataset[tuple[Tensor, int]]):
    """Rows with noise from the generators of torch, numpy and Python."""

    def __init__(self, samples: int, seed: int) -> None:
        self.x, self.y = rows(samples, seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(10) + float(np.random.rand()) + random.random()
        return self.x[index] + noise, int(self.y[index])


class Sentences(Dataset[tuple[Tensor, Tensor]]):
    """Words of 3 to 9 letters of 7, with a class for each letter."""

    def __init__(self, samples: int, seed: int) -> None:
        self.lengths = [3 + (index * seed) % 7 for index in range(samples)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        letters = (torch.arange(self.lengths[index]) * (index + 1)) % 7
        return letters + 1, letters % 3


def pad(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return letters (batch, longest), 0 after the end, and classes, -100 after it."""
    x, y = zip(*samples, strict=True)
    start = random.randrange(2)  # a random shift of the letters
    letters = nn.utils.rnn.pad_sequence(x, batch_first=True)
    letters = torch.where(letters > 0, (letters + start - 1) % 7 + 1, 0)
    return letters, nn.utils.rnn.pad_sequence(y, batch_first=True, padding_value=-100)


def letter_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of correct classes of the letters."""
    kept = targets != -100
    return (outputs.argmax(dim=1) == targets)[kept].float().mean()


class Tagger(nn.Module):
    """A class for each letter."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(8, 6, padding_idx=0), nn.Linear(6, 3)
        self.dropout = nn.Dropout(0.2)

    def forward(self, letters: Tensor) -> Tensor:
        """Map (batch, letters) to (batch, 3, letters)."""
        return self.layer(self.dropout(self.table(letters))).transpose(1, 2)


def network() -> nn.Sequential:
    """Return a network with BatchNorm and dropout."""
    hidden = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    return nn.Sequential(hidden, nn.LayerNorm(16), nn.Linear(16, 3))
'''
TASK = '''

def task() -> surestep.Task:
    """Classify random rows: 56 of them, so that the last batch of an epoch is smaller."""
    return surestep.Task(
        model={model},
        loss={loss},
        train={data}(56, 2),
        val={val}(21, 3),
        metrics={metrics},
        {more}
    )
'''


@dataclass(frozen=True)
class Case:
    """A recipe with options.

    Attributes:
        recipe: the name of a built-in one, or source.
        options: by full name.
        stop: the script is stopped after this step, and started again.
        shows: whether what the case is for has happened, by the progress in the last checkpoint.
    """

    recipe: str
    options: Mapping[str, Any]
    stop: int | None = None
    shows: Callable[[dict[str, Any]], bool] = bool


def small(
    loss: str = "nn.CrossEntropyLoss()",
    *,
    model: str = "network",
    more: str = "",
    stop: int | None = None,
    shows: Callable[[dict[str, Any]], bool] = bool,
    **options: Any,
) -> Case:
    """Return a case with a small network; `__` in the name of an option is a dot."""
    text = DATA + write_task(loss, model=model, more=more)
    named = {name.replace("__", "."): value for name, value in options.items()}
    return Case(text, named, stop, shows)


def write_task(
    loss: str = "functional_mean",
    *,
    model: str = "network",
    data: str = "rows",
    val: str = "",
    metrics: str = '{"accuracy": accuracy}',
    more: str = "",
) -> str:
    """Return the source of `task`."""
    val = val or data
    return TASK.format(loss=loss, model=model, data=data, val=val, metrics=metrics, more=more)


def loaded(
    loss: str = "nn.CrossEntropyLoss()",
    *,
    data: str = "Augmented",
    val: str = "",
    more: str = "",
    stop: int | None = None,
    **options: Any,
) -> Case:
    """Return a case whose samples are loaded."""
    text = DATA + write_task(loss, data=data, val=val, more=more)
    return Case(text, {name.replace("__", "."): value for name, value in options.items()}, stop)


def padded(loss: str, *, more: str = "", stop: int | None = None, **options: Any) -> Case:
    """Return a case whose samples are padded to the longest of their batch."""
    text = DATA + write_task(
        loss,
        model="Tagger",
        data="Sentences",
        metrics='{"accuracy": letter_accuracy}',
        more=f"collate_fn=pad,\n        {more}",
    )
    return Case(text, {name.replace("__", "."): value for name, value in options.items()}, stop)


def regression(loss: str, **options: Any) -> Case:
    """Return a case whose targets are numbers."""
    text = DATA + write_task(loss, data="numbers", metrics="{}")
    return Case(text, {name.replace("__", "."): value for name, value in options.items()})


def taught(teacher: str, *, stop: int | None = None, **options: Any) -> Case:
    """Return a case with a teacher."""
    loss = "surestep.losses.distillation(temperature=3.0, alpha=0.7)"
    text = DATA + write_task(loss, metrics="{}", more=f"teacher={teacher},")
    return Case(text, {name.replace("__", "."): value for name, value in options.items()}, stop)


def read_call(case: Case, folder: Path) -> RecipeCall:
    """Load the recipe of a case; its source is written to the folder."""
    name = case.recipe
    if "\n" in name:
        path = folder / f"ejected_recipe_{next(_COUNT)}.py"  # each module has its own name
        path.write_text(name, encoding="utf-8")
        name = str(path)
    return call_recipe(load(name), {**QUIET, **case.options}, {})


def compare(cases: Mapping[str, Case], folder: Path) -> None:
    """Assert that the scripts of all cases train the weights of surestep, bit for bit."""
    trained = {}
    for name, case in cases.items():
        (folder / name).mkdir()
        call = read_call(case, folder / name)
        text = print_script(call, "a run")
        (folder / name / "script.py").write_text(text, encoding="utf-8")
        trained[name] = train_recipe(call, folder / name / "run")
    check_style([folder / name / "script.py" for name in cases])
    run_scripts(cases, folder)
    problems = []
    for name, (last, best) in trained.items():
        saved = torch.load(folder / name / "last.pt")
        assert cases[name].shows(saved["progress"]), f"{name}: {saved['progress']}"
        problems += list_differences(saved, last, name)
        if best:
            problems += list_differences(torch.load(folder / name / "best.pt"), best, name)
    assert not problems


def compare_ranks(cases: Mapping[str, Case], folder: Path) -> None:
    """Assert that scripts of two processes train the weights of the runs, within rounding."""
    system = replace(
        read_system(),
        launched=LaunchInfo(size=2, local_size=2, launcher="--ranks", is_simulated=True),
    )
    for name, case in cases.items():
        (folder / name).mkdir()
        call = read_call(case, folder / name)
        text = print_script(call, "a run", system=system)
        (folder / name / "script.py").write_text(text, encoding="utf-8")
        words = json.dumps([str(call.recipe.path), {**QUIET, **case.options}])
        (folder / name / "recipe.json").write_text(words, encoding="utf-8")
    check_style([folder / name / "script.py" for name in cases])
    (folder / "train.py").write_text(TRAIN_ALL, encoding="utf-8")
    (folder / "run.py").write_text(RUN_SCRIPT, encoding="utf-8")
    check_ended_well(launch("2", str(folder / "train.py"), str(folder), *cases))
    for name in cases:
        # A launch for each: a second process group of a process may connect to the first one.
        check_ended_well(launch("2", str(folder / "run.py"), str(folder / name)))
        model = read_call(cases[name], folder / name).task().model()
        run = surestep.Run(folder / name / "run")
        for which in ("last", "best"):
            run.load_model(model, which=which)
            wanted = model.state_dict()
            found = torch.load(folder / name / f"{which}.pt")["model"]
            assert found.keys() == wanted.keys()
            for key, tensor in wanted.items():
                torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-5, msg=key)


TRAIN_ALL = """
import json, os, sys, surestep
from surestep.recipes.load import call_recipe, load
for name in sys.argv[2:]:
    os.chdir(os.path.join(sys.argv[1], name))
    recipe, options = json.load(open("recipe.json"))
    call = call_recipe(load(recipe), options, {})
    surestep.Trainer(call.task(), call.config, run="run").fit()
"""
RUN_SCRIPT = """
import os, runpy, sys
os.chdir(sys.argv[1])
runpy.run_path("script.py", run_name="__main__")
"""


def check_style(scripts: Sequence[Path]) -> None:
    """Assert that scripts are formatted, and that ruff finds nothing in them."""
    ruff = [sys.executable, "-m", "ruff"]
    for words in (["format", "--check"], ["check", "--select", "E,F,I,B,UP,SIM"]):
        line = [*ruff, *words, "--isolated", "--line-length=100", "--target-version=py311"]
        done = subprocess.run([*line, *scripts], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def train_recipe(call: RecipeCall, run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train; return the last weights with their average, and the best ones."""
    trainer = surestep.Trainer(call.task(), call.config, run=run)
    session: Session = trainer.session
    folder = trainer.fit()
    last: dict[str, Any] = {"model": copy_of(session.model.state_dict())}
    average = session.state.average
    if average is not None:
        with average.swapped_in():
            last["average"] = copy_of(session.model.state_dict())
    if session.plan.validation_metric is None:
        return last, {}
    model = session.model
    folder.load_model(model, which="best")
    return last, {"model": copy_of(model.state_dict())}


def copy_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors."""
    return {name: tensor.clone() for name, tensor in state.items()}


def run_scripts(cases: Mapping[str, Case], folder: Path) -> None:
    """Run all scripts in one child process."""

    def run() -> None:
        torch.set_num_threads(1)
        for name, case in cases.items():
            os.chdir(folder / name)
            text = Path("script.py").read_text(encoding="utf-8")
            assert not re.search(r"(import|from) surestep|surestep\.", text.split('"""', 2)[2])
            if case.stop is not None:
                stopped = text.replace("    return mean\n", f"    {STOP.format(case.stop)}\n")
                Path("stopped.py").write_text(stopped, encoding="utf-8")
                with suppress(KeyboardInterrupt):
                    runpy.run_path("stopped.py", run_name="__main__")
                    raise AssertionError("the script was not stopped")
                assert 0 < torch.load("last.pt")["progress"]["step"] <= case.stop
            runpy.run_path("script.py", run_name="__main__")

    done = fork(folder, (), run)
    assert done.returncode == 0, done.stdout + done.stderr


STOP = "if progress.step > {}:\n        raise KeyboardInterrupt\n    return mean"


def list_differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], name: str
) -> Iterator[str]:
    """Yield the tensors of a checkpoint that are not those of surestep, bit for bit."""
    for part, tensors in wanted.items():
        assert found[part].keys() == tensors.keys(), name
        for key, tensor in tensors.items():
            if not torch.equal(found[part][key], tensor):
                yield f"{name}: {part} {key}"
