"""The list of planters, and what several of them need."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.doctor.planted.matching import build_statements
from tests.doctor.planted.view import Edit, Site, View

# Bases whose models compute the same in train mode and in eval mode.
WITHOUT_MODES = ("segmentation", "forecasting", "vae", "wgan_gp", "resume", "streaming")


@dataclass(frozen=True)
class Planter:
    """Plants a mistake wherever it fits into a script.

    Attributes:
        rule: that has to find it.
        by: "S" if the source shows it, "R" if a run shows it, or "SR".
        plant: yields an edit for each position.
        runs: whether the script still runs without an exception.
        skip: bases in which it is no mistake.
        hidden: bases in which no run shows it.
        only: bases in which it is one; all if it is empty.
    """

    rule: str
    by: str
    plant: Callable[[View], Iterator[Edit]]
    runs: bool
    skip: tuple[str, ...]
    only: tuple[str, ...]
    hidden: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.plant.__name__

    def is_shown_by_run(self, base: str) -> bool:
        return "R" in self.by and base not in self.hidden

    def fits(self, base: str) -> bool:
        return base not in self.skip and (not self.only or base in self.only)


PLANTERS: list[Planter] = []


def plants(
    rule: str,
    by: str,
    *,
    runs: bool = True,
    skip: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
) -> Callable[[Callable[[View], Iterator[Edit]]], Callable[[View], Iterator[Edit]]]:
    """Add a planter to the list."""

    def add(function: Callable[[View], Iterator[Edit]]) -> Callable[[View], Iterator[Edit]]:
        PLANTERS.append(Planter(rule, by, function, runs, skip, only, hidden))
        return function

    return add


def list_optimizers(view: View) -> list[Site]:
    """Return the statements `name = torch.optim.Adam(...)` and the like."""
    return [
        site
        for site in view.calls("_o(*_r, **_k)")
        if isinstance(site.node, ast.Assign)
        and site.node.value is site.call
        and ast.unparse(site.bound["_o"]).startswith("torch.optim.")
        and "lr_scheduler" not in ast.unparse(site.bound["_o"])
    ]


def names_of(sites: list[Site]) -> set[str]:
    return {
        ast.unparse(target)
        for site in sites
        if isinstance(site.node, ast.Assign)
        for target in site.node.targets
    }


def optimizer_steps(view: View) -> list[Site]:
    """Return the statements that step an optimizer, also through a scaler."""
    names = names_of(list_optimizers(view)) | {"optimizer", "opt", "self.optimizer"}
    plain = [s for s in view.calls("_o.step(*_r)") if s.text("_o") in names]
    scaled = [s for s in view.calls("_s.step(_o)") if s.text("_o") in names]
    return plain + scaled


def schedule_steps(view: View) -> list[Site]:
    """Return the statements that step a schedule."""
    words = ("sched",)
    return [
        site
        for site in view.calls("_s.step(*_r)")
        if any(word in site.text("_s") for word in words)
    ]


def backwards(view: View) -> list[Site]:
    found = [s for s in view.calls("_l.backward(*_r, **_k)") if s.text("_l") != "accelerator"]
    return [*found, *view.calls("accelerator.backward(_l)")]


def clips(view: View) -> list[Site]:
    patterns = (
        "torch.nn.utils.clip_grad_norm_(_p, *_r, **_k)",
        "accelerator.clip_grad_norm_(_p, *_r)",
    )
    return [site for pattern in patterns for site in view.calls(pattern)]


def in_same_block(first: Site, second: Site) -> bool:
    return first.block is second.block


def trains(site: Site) -> bool:
    """Whether the function around a statement, or the script itself, has a backward pass."""
    around = site.function or site.above[0]
    return ".backward(" in ast.unparse(around)


def import_first(view: View, text: str) -> None:
    """Add an import to the main file."""
    tree = view.trees[view.script.main]
    index = next(i for i, n in enumerate(tree.body) if isinstance(n, (ast.Import, ast.ImportFrom)))
    tree.body[index:index] = build_statements(text)


def delete_all(sites: list[Site]) -> None:
    for site in sites:
        site.remove()
