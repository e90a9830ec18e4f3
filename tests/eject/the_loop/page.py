"""`docs/the-loop.md`: its code and its experiments are generated, and its text is not.

The code is in the blocks that start with "```py"; together they are the script, in order. An
experiment is between `<!-- experiment: NAME -->` and `<!-- end -->`.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.eject.the_loop.experiments import EXPERIMENTS, Edits, Experiment

PAGE = Path(__file__).parents[3] / "docs" / "the-loop.md"
CODE = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPERIMENT = re.compile(
    r"^<!-- experiment: (\w+) -->\n\n```diff\n(.*?)```\n\n(.*?)\n\n<!-- end -->$",
    re.MULTILINE | re.DOTALL,
)
_RULES = Path(__file__).parents[3] / "docs" / "rules"


def read_code(page: str) -> list[str]:
    """Return the lines of the script that the page has, without blank ones."""
    return [line for block in CODE.findall(page) for line in block.splitlines() if line]


def read_results(page: str) -> dict[str, str]:
    """Return the reported result of each experiment."""
    return {name: result for name, _, result in _EXPERIMENT.findall(page)}


def replace_experiments(page: str, describe: Callable[[Experiment], str]) -> str:
    """Return the page with the experiments as they are now, and with the result of each."""
    by_name = {one.name: one for one in EXPERIMENTS}

    def replace(found: re.Match[str]) -> str:
        one = by_name[found[1]]
        block = f"```diff\n{format_edits(one.edits)}```"
        return f"<!-- experiment: {found[1]} -->\n\n{block}\n\n{describe(one)}\n\n<!-- end -->"

    return _EXPERIMENT.sub(replace, page)


def format_edits(edits: Edits) -> str:
    """Return the lines that edits remove and add."""
    text = ""
    for old, new in edits:
        lines = difflib.ndiff(old.splitlines(), new.splitlines())
        text += "".join(f"{line[0]}{line[2:]}\n" for line in lines if line[0] != "?")
    return text


def format_result(before: str, after: str, codes: Mapping[str, set[str]]) -> str:
    """Return the lines that report an experiment.

    Args:
        before: the measurement of the script.
        after: that of the changed script.
        codes: of the rules that find the change, by command.
    """
    found = [
        f"Found by `surestep {command}`: {', '.join(link_rule(code) for code in sorted(rules))}."
        for command, rules in codes.items()
        if rules
    ]
    rules = " ".join(found) or "No rule finds it."
    return f"- The script: {before}.\n- With the change: {after}.\n- {rules}"


def link_rule(code: str) -> str:
    """Return a link to the page of a rule."""
    (path,) = _RULES.glob(f"{code.lower()}-*.md")
    return f"[{code}](rules/{path.name})"
