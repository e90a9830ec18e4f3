"""The experiments of `docs/the-loop.md`: a script with one line changed, and what then happens."""

import contextlib
import io
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from surestep.eject.script import print_script
from surestep.recipes.load import call_recipe, load

SEEDS = (0, 1, 2)
COMMAND = "surestep eject digits --epochs 12 --task.width 8"
_OPTIONS = {"epochs": 12, "task.width": 8}
_STOP = 40  # the step after which a run is interrupted, two steps after a checkpoint
Edits = tuple[tuple[str, str], ...]


@cache
def print_digits() -> str:
    """Return the script of the page."""
    return print_script(call_recipe(load("digits"), _OPTIONS, {}), COMMAND.join("``"))


def edit(edits: Edits) -> str:
    """Return the script with some edits, each at its only place."""
    text = print_digits()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def load_script(text: str, seed: int = 0) -> ModuleType:
    """Return the script as a module, before it trains."""
    module = ModuleType("script")
    exec(compile(text.replace("SEED = 0", f"SEED = {seed}"), "script.py", "exec"), vars(module))
    return module


@contextlib.contextmanager
def enter_folder() -> Iterator[Path]:
    """Enter a new folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


_read_table = cache(np.loadtxt)  # which takes a third of a run


def train(module: ModuleType) -> list[str]:
    """Train in this folder; return the lines that are printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.object(np, "loadtxt", _read_table):
        module.train()
    return printed.getvalue().splitlines()


def read_weights(path: str = "last.pt") -> dict[str, Tensor]:
    """Return the weights of a checkpoint."""
    weights: dict[str, Tensor] = torch.load(path, weights_only=True)["model"]
    return weights


def find_distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    """Return how far weights are from each other."""
    if all(map(torch.equal, one.values(), other.values())):
        return "bitwise equal"
    largest = max(
        float((a.double() - b.double()).abs().max())
        for a, b in zip(one.values(), other.values(), strict=True)
    )
    return f"up to {largest:.2g} apart"


@cache
def measure_training(text: str) -> str:
    """Return the accuracy and the loss of the last evaluation: the mean of seeds, and the range."""
    accuracies, losses = [], []
    for seed in SEEDS:
        with enter_folder():
            last = [line for line in train(load_script(text, seed)) if "accuracy" in line][-1]
        words = last.split()
        losses.append(float(words[3]))
        accuracies.append(float(words[5]))
    return f"accuracy {_show(accuracies, '.3f')}, loss {_show(losses, '.3g')}"


def _show(values: list[float], form: str) -> str:
    mean = sum(values) / len(values)
    return f"{mean:{form}} ({min(values):{form}} to {max(values):{form}})"


def measure_resume(text: str) -> str:
    """Return how far a run that was interrupted and resumed is from one that was not."""
    with enter_folder():
        train(load_script(text))
        full = read_weights()
    with enter_folder():
        module = load_script(text)
        with contextlib.suppress(KeyboardInterrupt), _interrupt(module, _STOP):
            train(module)
        module = load_script(text)
        calls = _count_steps(module)
        torch.rand(5)  # a new process has other generators
        train(module)
        return f"weights {find_distance(full, read_weights())}, {calls()} steps after the resume"


def _count_steps(module: ModuleType) -> Callable[[], int]:
    step, counted = module.take_step, [0]

    def count(*arguments: Any) -> float:
        counted[0] += 1
        loss: float = step(*arguments)
        return loss

    module.take_step = count  # type: ignore[attr-defined]
    return lambda: counted[0]


@contextlib.contextmanager
def _interrupt(module: ModuleType, steps: int) -> Iterator[None]:
    """Interrupt the training after so many steps."""
    step, left = module.take_step, [steps]

    def take(*arguments: Any) -> float:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        loss: float = step(*arguments)
        return loss

    with mock.patch.object(module, "take_step", take):
        yield


def measure_repeat(text: str) -> str:
    """Return how far two runs are from each other, in processes with other random numbers."""
    found = []
    for seed in (1, 2):
        with enter_folder():
            torch.manual_seed(seed)
            train(load_script(text))
            found.append(read_weights())
    return f"two runs: weights {find_distance(*found)}"


def measure_equality(text: str) -> str:
    """Return how far the run is from that of the script as it is."""
    found = []
    for one in (print_digits(), text):
        with enter_folder():
            train(load_script(one))
            found.append(read_weights())
    return f"weights {find_distance(*found)} to those of the script"


def measure_nan(text: str) -> str:
    """Return what happens if one pixel of one image is not a number."""
    module = load_script(text)
    parts = module.task

    def spoil(**options: Any) -> Any:
        made = parts(**options)
        made.train[0][100, 0, 3, 3] = math.nan
        return made

    module.task = spoil  # type: ignore[attr-defined]
    with enter_folder():
        try:
            last = train(module)[-1]
        except FloatingPointError as error:
            return f"FloatingPointError: {error}".removesuffix(".")
        broken = sum(int((~value.isfinite()).sum()) for value in read_weights().values())
        size = sum(value.numel() for value in read_weights().values())
        return f"{broken} of {size} numbers of the model are NaN; {last.partition(': ')[2]}"


def measure_counter(text: str) -> str:
    """Return where the counter is after the calls of a full run."""
    module = load_script(text)
    with enter_folder(), contextlib.suppress(KeyboardInterrupt), _interrupt(module, module.STEPS):
        seen = []
        step = module.take_step

        def take(model: Any, optimizer: Any, parts: Any, progress: Any) -> float:
            loss: float = step(model, optimizer, parts, progress)
            seen.append((progress.step, loss))
            return loss

        module.take_step = take  # type: ignore[attr-defined]
        train(module)
    return f"after {len(seen)} calls: step {seen[-1][0]}, loss of the batch {seen[-1][1]:.2g}"


def measure_graph(text: str) -> str:
    """Return what the forward passes of an evaluation keep for a backward pass."""
    module, kept = load_script(text), [0]

    def keep(tensor: Tensor) -> Tensor:
        kept[0] += tensor.numel() * tensor.element_size()
        return tensor

    parts = module.task(width=8)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module.evaluate(parts.model, parts)
    return f"{kept[0] / 2**20:.1f} MiB kept for a backward pass"


def measure_write(text: str) -> str:
    """Return what is left of a checkpoint if the process is killed while it writes the next one."""
    module, whole = load_script(text), torch.save

    def write_half(state: Any, path: Path) -> None:
        whole(state, path)
        if not path.name.startswith("last"):
            return
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        raise KeyboardInterrupt

    with enter_folder():
        with contextlib.suppress(KeyboardInterrupt), _interrupt(module, _STOP):
            train(module)
        with contextlib.suppress(KeyboardInterrupt), mock.patch.object(torch, "save", write_half):
            train(load_script(text))
        try:
            step = torch.load("last.pt", weights_only=True)["progress"]["step"]
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            reason = str(error).partition(":")[0].partition(".")[0]
            return f"last.pt cannot be read: {type(error).__name__}, {reason}"
        return f"last.pt can be read, and is that of step {step}"


def measure_best(text: str) -> str:
    """Return which evaluation the best weights are from."""
    with enter_folder():
        train(load_script(text))
        step = torch.load("best.pt", weights_only=True)["step"]
        best = torch.load("last.pt", weights_only=True)["progress"]["best"]
        return f"best.pt is that of step {step}, with a loss of {best:.3g}"


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("made_by_the_file",))


def measure_pickle(text: str) -> str:
    """Return what happens if last.pt comes from someone who put code into it."""
    with enter_folder() as folder:
        torch.save({"model": _Code()}, "last.pt")
        try:
            train(load_script(text))
        except Exception as error:
            ran = (folder / "made_by_the_file").exists()
            return f"{type(error).__name__}; the code in the file {'ran' if ran else 'did not run'}"
    raise AssertionError("the file was read")


@dataclass(frozen=True)
class Experiment:
    """A change of the script.

    Attributes:
        name: in the page.
        edits: of the script.
        measure: returns what happens, of the script before the change and after it.
    """

    name: str
    edits: Edits
    measure: Callable[[str], str] = measure_training


ZERO = "    optimizer.zero_grad()  # backward() adds to the gradients that are there\n"
BACKWARD = "    (loss / items).backward()\n"
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM, error_if_nonfinite=True)\n"
STEP = "    optimizer.step()\n"
NOT_FINITE = """\
    if not math.isfinite(mean):  # after such a step, every weight would be NaN
        raise FloatingPointError(f"The loss of step {progress.step + 1} is {mean}.")
"""
RATE = """\
    for group in optimizer.param_groups:
        group["lr"] = LR * factor
"""
MODEL_SEED = '    torch.manual_seed(derive_seed("model", SEED, progress.step, position))\n'
RECIPE_SEED = '    torch.manual_seed(derive_seed("recipe", SEED))  # for what task() draws\n'
TRAIN_MODE = """\
    model.train()  # dropout is on, and BatchNorm uses the statistics of the batch
"""
WRITE = """\
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)  # a crash before this leaves the old file
"""
EXPERIMENTS = (
    Experiment("rate", (("LR = 0.003  #", "LR = 0.00003  #"),)),
    Experiment(
        "split",
        (
            (
                "    return x[order], torch.tensor(table[:, -1], dtype=torch.int64)[order]\n",
                "    return x, torch.tensor(table[:, -1], dtype=torch.int64)\n",
            ),
        ),
    ),
    Experiment(
        "sorted",
        (
            (
                "        train=(x[:1200], y[:1200]),\n",
                "        train=(x[:1200][y[:1200].argsort()], y[:1200].sort().values),\n",
            ),
            (
                "    return torch.randperm(samples, generator=generator)\n",
                "    return torch.arange(samples)\n",
            ),
        ),
    ),
    Experiment(
        "order",
        (('derive_seed("order", SEED, epoch)', 'derive_seed("order", SEED)'),),
    ),
    Experiment("zero_grad", ((ZERO, ""),)),
    Experiment("model_seed", ((MODEL_SEED, ""),), measure_resume),
    Experiment("divide", ((BACKWARD, "    loss.backward()\n"),)),
    Experiment(
        "not_finite",
        ((NOT_FINITE, ""), (CLIP, CLIP.replace(", error_if_nonfinite=True", ""))),
        measure_nan,
    ),
    Experiment("clip", ((CLIP, ""),)),
    Experiment("clip_early", ((CLIP, ""), (BACKWARD, CLIP + BACKWARD))),
    Experiment("constant_rate", ((RATE, ""),)),
    Experiment("step", ((STEP, ""), (BACKWARD, STEP + BACKWARD))),
    Experiment("counter", (("    progress.step += 1\n", ""),), measure_counter),
    Experiment("no_grad", (("@torch.no_grad()\n", ""),), measure_graph),
    Experiment(
        "eval",
        (("    model.eval()  # no dropout, and BatchNorm uses its running statistics\n", ""),),
    ),
    Experiment(
        "means",
        (
            (
                "            sums[name] += float(metric(outputs, y[rows])) * len(rows)\n",
                "            sums[name] += float(metric(outputs, y[rows])) * len(x) / 5\n",
            ),
        ),
    ),
    Experiment("train_again", (("    model.train()\n    return {", "    return {"),)),
    Experiment("write", ((WRITE, "    torch.save(state, path)\n"),), measure_write),
    Experiment("recipe_seed", ((RECIPE_SEED, ""),), measure_repeat),
    Experiment("pickle", (("weights_only=True", "weights_only=False"),), measure_pickle),
    Experiment(
        "moments",
        (('        optimizer.load_state_dict(saved["optimizer"])\n', ""),),
        measure_resume,
    ),
    Experiment(
        "progress",
        (('        progress = Progress(**saved["progress"])\n', ""),),
        measure_resume,
    ),
    Experiment("train_mode", ((TRAIN_MODE, ""),), measure_equality),
    Experiment("best", (("value < best", "value > best"),), measure_best),
    Experiment(
        "warmup",
        (
            (
                "        return WARMUP_START + (1 - WARMUP_START) * (step / WARMUP_STEPS)\n",
                "        return 1.0\n",
            ),
        ),
    ),
    Experiment(
        "decay",
        (
            (
                '"params": others, "weight_decay": 0.0',
                '"params": others, "weight_decay": WEIGHT_DECAY',
            ),
        ),
    ),
    Experiment("adam", (("torch.optim.AdamW(", "torch.optim.Adam("),)),
    Experiment("reduction", (('reduction="sum"', 'reduction="mean"'),)),
)
