"""Compare the doctor with other tools on the scripts with a planted mistake.

`python -m tests.doctor.planted.compare --tools DIR` writes docs/rules/comparison.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from tests.doctor.planted.corpus import Mutant, plant_all
from tests.doctor.planted.page import PAGE as RECALL
from tests.doctor.planted.page import percent
from tests.doctor.planted.recall import examine
from tests.doctor.planted.run import Result, check, watch_all
from tests.doctor.planted.scripts import list_bases, load_base
from tests.doctor.planted.tools import TOOLS, Tool

PAGE = RECALL.with_name("comparison.md")
HEADER = "<!-- Written by `python -m tests.doctor.planted.compare`. -->"
GROUPS = {
    "SS1": "steps and gradients",
    "SS2": "parameters and modules",
    "SS3": "schedules",
    "SS4": "modes and evaluation",
    "SS5": "losses",
    "SS6": "data",
    "SS7": "speed and memory",
    "SS8": "checkpoints",
    "SS9": "several processes, devices and precision",
}
INTRO = """\
# The doctor beside other tools

{bases} correct training scripts get one mistake at a time, as for [what the doctor finds of planted
mistakes](recall.md). Each tool examines the same {planted} scripts with a mistake, and the same
{bases} scripts without one. The mistakes are those that the rules of the doctor are about, so the
table shows what the others find of these. It does not show what they find of other mistakes.

Tools are counted differently, in favor of the others:

- surestep finds a mistake if the rule of that mistake reports it, in `check` or in `watch`.
- Another tool finds a mistake if it reports anything that it does not report of the correct script.
  The report need not be about the mistake, and it may be of the lowest severity.
- A warning about a correct script counts for surestep if its severity is error or warning, and for
  torch-audit too. For TorchFix it counts if the rule is on by default. For torchtest2, `WARN` and
  `FAIL` count."""
NOTES = """\
## How each tool is run

- **TorchFix** reads the scripts: `python -m torchfix --select=ALL`, with all of its rules.
- **torch-audit** needs a model and an optimizer. It gets them at the first step of each optimizer,
  from `autopatch(model, optimizer=optimizer, every_n_steps=1)`, and sees all steps after that.
- **torchtest2** needs a model, a batch and an optimizer. It gets them at the first step of each
  optimizer, from `check_model(model, batch, optimizer=optimizer)`. It does not get the loss, as
  scripts compute theirs in many ways; so `initial_loss`, `overfit_batch` and `loss` are skipped.

The model of an optimizer is the outermost module that has one of its parameters. Scripts that the
last two tools could not examine count as not found: the script needs a library that is not
installed or several processes, or no model with a batch was seen.

## Tools that are not in the table

- **TrainCheck** 0.2.0 learns what holds in a trace of a correct run, and checks a trace of another
  run against it. Each script here would need its own correct version as the reference, which a user
  with a mistake does not have.
- **torchtest** 0.5 tests whether parameters change, and whether outputs are in a range, NaN or
  infinite. It needs the model, the loss and a batch, and torchtest2 has these checks.
- **SkorchDoctor** is not a package of PyPI: `pip download skorchdoctor` finds none.
- **dslinter** 2.0.9, a plugin of pylint, does not start on Python 3.11.
- **Ruff** has no rule about torch.

## Write this page again

surestep does not depend on the tools. Each is installed in a folder with its name:

```text
{install}
python -m tests.doctor.planted.compare --tools DIR
```"""


def find_new(mutant: Result, correct: Result) -> list[str]:
    """Return the rules that report more of a script with a mistake than of the correct one."""
    counts = [Counter((f["rule"], f["at"]) for f in result.found) for result in (mutant, correct)]
    return sorted({rule for rule, _ in counts[0] - counts[1]})


def is_examined(result: Result) -> bool:
    """Return whether a tool examined a script: it reported something, or met no error."""
    return bool(result.found) or not result.error


def count_warnings(results: Sequence[Result]) -> tuple[int, int]:
    """Return the number of warnings, and of scripts with one."""
    numbers = [sum(f["severity"] in ("error", "warning") for f in r.found) for r in results]
    return sum(numbers), sum(map(bool, numbers))


def run_tool(
    tool: Tool, mutants: Sequence[Mutant], bases: Sequence[str], folder: Path, processes: int
) -> tuple[dict[str, Result], dict[str, Result]]:
    """Return what a tool finds in each script with a mistake, and in each correct one."""
    scripts = {m.name: m.files for m in mutants if m.can_run or not tool.runs}
    correct = {b: load_base(b).write() for b in bases if load_base(b).can_run or not tool.runs}
    results = tool.find([*scripts.values(), *correct.values()], folder / tool.name, processes)
    found = dict(zip([*scripts, *correct], results, strict=True))
    return {name: found[name] for name in scripts}, {name: found[name] for name in correct}


def examine_correct(bases: Sequence[str], processes: int) -> list[Result]:
    """Return what check and watch find in each correct script."""
    scripts = [load_base(base).write() for base in bases]
    can_run = [load_base(base).can_run for base in bases]
    watched = iter(
        watch_all([s for s, runs in zip(scripts, can_run, strict=True) if runs], processes)
    )
    checked = [check(files) for files in scripts]
    return [
        Result(c.found + (next(watched).found if runs else []))
        for c, runs in zip(checked, can_run, strict=True)
    ]


def render_page(
    mutants: Sequence[Mutant],
    bases: Sequence[str],
    found: Mapping[str, Mapping[str, bool]],
    warnings: Mapping[str, tuple[int, int]],
) -> str:
    """Return the page.

    Args:
        mutants: the scripts with a mistake.
        bases: the correct scripts.
        found: for each tool, whether it finds the mistake of each script that it examined.
        warnings: of each tool: about the correct scripts, and how many of those have one.
    """
    intro = INTRO.format(bases=len(bases), planted=len(mutants))
    if list(bases) != list_bases():
        intro += f"\n\nOf the {len(list_bases())} scripts, these are used: {', '.join(bases)}."
    install = "\n".join(tool.install for tool in TOOLS if tool.name in found)
    groups = sorted({m.planter.rule[:3] for m in mutants})
    members = {
        f"{g} {GROUPS[g]}": [m.name for m in mutants if m.planter.rule[:3] == g] for g in groups
    }
    rows = [["mistakes", "planted", *found], ["---"] * (2 + len(found))]
    for title, names in members.items():
        numbers = [sum(by.get(name, False) for name in names) for by in found.values()]
        rows.append([title, len(names), *numbers])
    totals = [sum(by.values()) for by in found.values()]
    rows.append(
        ["**all**", len(mutants), *(f"**{n}** ({percent(n, len(mutants))})" for n in totals)]
    )
    rows.append(["scripts that it examined", len(mutants), *map(len, found.values())])
    rows.append(
        [
            "warnings about correct scripts",
            "",
            *(render_warnings(*warnings[tool]) for tool in found),
        ]
    )
    table = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    parts = [HEADER, intro, "## Found", table, NOTES.replace("{install}", install)]
    return "\n\n".join(parts) + "\n"


def render_warnings(number: int, scripts: int) -> str:
    return f"{number} in {scripts} scripts" if number else "none"


def find_missing(folder: Path) -> list[Tool]:
    """Return the tools that a folder lacks, or has in another version."""

    def version_of(tool: Tool) -> str | None:
        versions = distributions(name=tool.name, path=[str(folder / tool.name)])
        return next((one.version for one in versions), None)

    return [tool for tool in TOOLS if version_of(tool) != tool.version]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tools", type=Path, required=True, metavar="DIR", help="has the tools")
    parser.add_argument("--bases", nargs="*", default=list_bases(), choices=list_bases())
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if missing := find_missing(given.tools):
        print("Install first:", *[tool.install for tool in missing], sep="\n", file=sys.stderr)
        return 2
    mutants = list(plant_all(given.bases))
    outcomes = examine(mutants, given.processes)
    found = {"surestep": {o.mutant.name: o.by_check or o.by_watch for o in outcomes}}
    warnings = {"surestep": count_warnings(examine_correct(given.bases, given.processes))}
    for tool in TOOLS:
        results, correct = run_tool(tool, mutants, given.bases, given.tools, given.processes)
        found[tool.name] = {
            mutant.name: bool(find_new(results[mutant.name], correct[mutant.base]))
            for mutant in mutants
            if mutant.name in results
            and is_examined(results[mutant.name])
            and is_examined(correct[mutant.base])
        }
        warnings[tool.name] = count_warnings(list(correct.values()))
        print(f"{tool.name}: {sum(found[tool.name].values())} found", file=sys.stderr)
    PAGE.write_text(render_page(mutants, given.bases, found, warnings), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
