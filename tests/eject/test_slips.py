"""`surestep check` and `watch` find usual mistakes in a printed script that is changed by hand."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from surestep.eject.script import print_script
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.system import read_system
from surestep.recipes.load import call_recipe, load
from tests.doctor.planted.run import check, watch_all
from tests.laws.support.ejected import padded, read_call, small

pytestmark = pytest.mark.slow("prints the script of a built-in recipe, and runs it")
PAGE = Path(__file__).parents[2] / "docs" / "eject.md"

ZERO_GRAD = "    optimizer.zero_grad()  # backward() adds to the gradients that are there\n"
BACKWARD = "    (loss / items).backward()\n"
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM, error_if_nonfinite=True)\n"
STEP = "    optimizer.step()\n"
EVAL = "    model.eval()  # no dropout, and BatchNorm uses its running statistics\n"
DROPOUT = "        nn.Dropout(dropout),\n"
LAST_LAYER = "        nn.Linear(2 * width * 2 * 2, 10),\n"
GROUPS = """    groups = [
        {"params": decaying, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
"""
WRITE = """    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)  # a crash before this leaves the old file
"""
DROP = """class Drop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.2)


"""
Edits = tuple[tuple[str, str], ...]


class Slip(NamedTuple):
    """A mistake: its edits of the script, and the rule that finds it by "check" or "watch"."""

    name: str
    rule: str
    by: str
    edits: Edits


SLIPS = (
    Slip("the gradients are never zeroed", "SS101", "watch", ((ZERO_GRAD, ""),)),
    Slip(
        "the gradients are zeroed after the backward pass",
        "SS102",
        "check",
        ((ZERO_GRAD, ""), (BACKWARD, f"{BACKWARD}    optimizer.zero_grad()\n")),
    ),
    Slip(
        "the gradients are clipped before the backward pass",
        "SS103",
        "check",
        ((CLIP, ""), (BACKWARD, CLIP + BACKWARD)),
    ),
    Slip(
        "the gradients are clipped after the step",
        "SS104",
        "check",
        ((CLIP, ""), (STEP, STEP + CLIP)),
    ),
    Slip("the optimizer takes no step", "SS106", "check", ((STEP, ""),)),
    Slip(
        "the backward pass keeps its graph",
        "SS109",
        "watch",
        ((BACKWARD, "    (loss / items).backward(retain_graph=True)\n"),),
    ),
    Slip(
        "the loss is made a new tensor",
        "SS112",
        "check",
        ((BACKWARD, "    torch.tensor(loss.item() / items, requires_grad=True).backward()\n"),),
    ),
    Slip(
        "the limit of the norm is a thousandth",
        "SS117",
        "watch",
        (("MAX_GRAD_NORM = 1.0", "MAX_GRAD_NORM = 0.001"),),
    ),
    Slip(
        "the model is built again after its optimizer",
        "SS202",
        "check",
        (("    if LAST.exists():\n", "    model = task().model\n    if LAST.exists():\n"),),
    ),
    Slip(
        "weight decay for all parameters",
        "SS207",
        "check",
        (
            (GROUPS, ""),
            ("AdamW(groups, lr=LR", "AdamW(model.parameters(), weight_decay=WEIGHT_DECAY, lr=LR"),
        ),
    ),
    Slip("Adam instead of AdamW", "SS208", "check", (("optim.AdamW(", "optim.Adam("),)),
    Slip(
        "the forward method is called",
        "SS209",
        "check",
        (("sum_loss(model(x[rows]), y[rows])", "sum_loss(model.forward(x[rows]), y[rows])"),),
    ),
    Slip(
        "a threshold that no activation reaches",
        "SS212",
        "watch",
        (("nn.ReLU()]", "nn.ReLU(), nn.Threshold(100.0, 0.0)]"),),
    ),
    Slip(
        "the model stays in eval mode",
        "SS401",
        "check",
        (("    model.train()\n    return", "    return"),),
    ),
    Slip("the model is evaluated in train mode", "SS402", "check", ((EVAL, ""),)),
    Slip("the evaluation builds a graph", "SS403", "check", (("@torch.no_grad()\n", ""),)),
    Slip(
        "dropout that is always on",
        "SS410",
        "check",
        ((DROPOUT, "        Drop(),\n"), ("def block(", f"{DROP}def block(")),
    ),
    Slip(
        "a softmax before the loss",
        "SS501",
        "check",
        ((LAST_LAYER, f"{LAST_LAYER}        nn.Softmax(dim=1),\n"),),
    ),
    Slip(
        "the negative log-likelihood of logits",
        "SS503",
        "check",
        (("functional.cross_entropy(outputs", "functional.nll_loss(outputs"),),
    ),
    Slip(
        "the checkpoint is written in place",
        "SS807",
        "check",
        ((WRITE, "    torch.save(state, path)\n"),),
    ),
)
CHANGES: dict[str, Edits] = {
    "nothing": (),
    "model, loss and optimizer": (
        ("nn.ReLU()]", "nn.GELU()]"),
        ('reduction="sum")', 'reduction="sum", label_smoothing=0.1)'),
        ("torch.optim.AdamW(groups, lr=LR, fused=True)", "torch.optim.SGD(groups, 0.1, 0.9)"),
        ("LR = 0.003", "LR = 0.1"),
    ),
    "data and schedule": (
        ("model(x[rows]), y[rows])", "model(x[rows] + 0.1 * torch.randn(x[rows].shape)), y[rows])"),
        ("    factor = lr_factor(progress.step)\n", "    factor = min(1.0, progress.step / 10)\n"),
        ("LOG_EVERY = 50", "LOG_EVERY = 5"),
        (DROPOUT, ""),
    ),
}


@cache
def print_digits():
    call = call_recipe(load("digits"), {"epochs": 2, "task.width": 8}, {})
    return print_script(call, "`surestep train digits`")


def edit(edits):
    """Return the files of the script with some edits, each at its only place."""
    text = print_digits()
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return {"train.py": text}


def test_changed_scripts_run_without_a_finding():
    scripts = [edit(edits) for edits in CHANGES.values()]
    for name, script, watched in zip(CHANGES, scripts, watch_all(scripts), strict=True):
        assert (watched.error, watched.found) == ("", []), name
        assert check(script).found == [], name


def test_scripts_of_workers_and_of_ranks_have_no_finding(tmp_path):
    launched = LaunchInfo(size=2, local_size=2, launcher="x", is_simulated=True)
    cases = {"workers": padded("nn.CrossEntropyLoss()", data__num_workers=2), "ranks": small()}
    for name, case in cases.items():
        here = read_system()
        system = replace(here, launched=launched) if name == "ranks" else here
        text = print_script(read_call(case, tmp_path), "a run", system=system)
        assert check({"train.py": text}).found == [], name


@pytest.mark.parametrize("slip", [one for one in SLIPS if one.by == "check"], ids=lambda s: s.rule)
def test_check_finds_the_slip(slip):
    assert check(edit(slip.edits)).codes == {slip.rule}


def test_watch_finds_the_slips_that_only_a_run_shows():
    slips = [slip for slip in SLIPS if slip.by == "watch"]
    for slip, watched in zip(slips, watch_all([edit(s.edits) for s in slips]), strict=True):
        assert slip.rule in watched.codes, slip.name
        assert slip.rule not in check(edit(slip.edits)).codes, slip.name


def test_page_lists_the_slips():
    rows = re.findall(
        r"^\| (.+) \| \[(SS\d+)\]\(\S+\) \| (check|watch) \|$", PAGE.read_text(), re.M
    )
    assert rows == [(slip.name, slip.rule, slip.by) for slip in SLIPS]
    assert len(SLIPS) == 20
