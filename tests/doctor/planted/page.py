"""Write docs/rules/recall.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from surestep.doctor.rule import list_codes
from tests.doctor.planted.recall import Count, Outcome, count

PAGE = Path(__file__).parents[3] / "docs" / "rules" / "recall.md"
HEADER = "<!-- Written by `python -m tests.doctor.planted --write`. -->"
OTHERS = Path(__file__).with_name("others.md")
INTRO = """\
# What the doctor finds of planted mistakes

{bases} correct training scripts, written in different styles, get one mistake at a time, in every
position that it fits. Each script is checked by `surestep check`, and watched by `surestep watch`
where the rule has a run-time side. A mistake counts as found if its own rule reports it.

- {either} of {planted} mistakes ({percent}) are found by check or watch.
- {found_for_watch} of {for_watch} mistakes ({watch_percent}) that show in a run, and whose rule has
  a run-time side, are found by watch.
- The {bases} scripts without a mistake, and other spellings of them, have no finding of the
  severity error or warning. A test checks this.

The shares are of mistakes that have a rule, in the forms that are planted here. Scripts of others
have mistakes in other forms too. The scripts and the mistakes are in `tests/doctor/planted/`.
Names, imports, order and structure of scripts are varied at random by `--seeds N`.
"""


def render_page(outcomes: Sequence[Outcome], bases: Sequence[str]) -> str:
    total = count(outcomes)
    intro = INTRO.format(
        bases=len(bases),
        either=total.either,
        planted=total.planted,
        percent=percent(total.either, total.planted),
        found_for_watch=total.found_for_watch,
        for_watch=total.for_watch,
        watch_percent=percent(total.found_for_watch, total.for_watch),
    )
    parts = [
        *(HEADER, intro.rstrip(), "## By rule", render_rules(outcomes)),
        *("## By script", render_table("script", group(outcomes, lambda o: o.mutant.base))),
        *("## By rule and script", render_matrix(outcomes)),
    ]
    if OTHERS.is_file():
        parts.append(OTHERS.read_text(encoding="utf-8").strip())
    return "\n\n".join(parts) + "\n"


def group(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> dict[str, Count]:
    names = sorted({key(outcome) for outcome in outcomes})
    return {name: count([o for o in outcomes if key(o) == name]) for name in names}


def render_rules(outcomes: Sequence[Outcome]) -> str:
    codes = list_codes()
    counted = group(outcomes, lambda o: o.rule)
    return render_table("rule", {f"{code} {codes[code]}": c for code, c in counted.items()})


def render_table(title: str, counted: dict[str, Count]) -> str:
    head = f"| {title} | planted | check | watch | either |\n|---|---|---|---|---|"
    rows = [
        f"| {name} | {c.planted} | {c.check} | {c.watch} | {c.either} |"
        for name, c in counted.items()
    ]
    return "\n".join([head, *rows])


def render_matrix(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row for each script: the rules, with found and planted mistakes."""
    head = "| script | found by check or watch, of planted |\n|---|---|"
    rows = []
    for base in sorted({o.mutant.base for o in outcomes}):
        counted = group([o for o in outcomes if o.mutant.base == base], lambda o: o.rule)
        cells = [f"{code} {c.either}/{c.planted}" for code, c in counted.items()]
        rows.append(f"| {base} | {', '.join(cells)} |")
    return "\n".join([head, *rows])


def percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none planted"
