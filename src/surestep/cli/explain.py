"""`surestep explain`."""

import textwrap
from json import dumps
from typing import Annotated, Any

import tyro

from surestep.base.errors import ConfigError
from surestep.base.text import print_escaped, print_json
from surestep.cli.parse import command
from surestep.doctor.rule import Rule, load_rules, read_example
from surestep.doctor.selection import find_unknown


@command("explain")
def run(
    rule: Annotated[str | None, tyro.conf.arg(metavar="[RULE]")] = None, /, *, json: bool = False
) -> int:
    """Explain a rule of `surestep check`, or list all rules.

    Args:
        rule: Its code or its name: SS101 or missing-zero-grad.
        json: Print it as JSON.
    """
    rules = load_rules() if rule is None else [_find(rule)]
    if json:
        rows = [_describe(found) for found in rules]
        print_json(dumps(rows if rule is None else rows[0], indent=1))
    elif rule is None:
        width = max(len(found.name) for found in rules)
        for found in rules:
            commands = ", ".join(found.commands)
            start = f"{found.code}  {found.severity:<7}  {commands:<12}  {found.name:<{width}}"
            print(f"{start}  {found.summary}")
        print("\n`surestep explain SS101` explains a rule.")
    else:
        print_escaped(_page(rules[0]))
    return 0


def _find(name: str) -> Rule:
    for rule in load_rules():
        if name.upper() == rule.code or name == rule.name:
            return rule
    unknown = find_unknown(name)
    codes = ", ".join(rule.code for rule in load_rules() if rule.code.startswith(name.upper()))
    raise ConfigError(unknown or f"{name} is not one rule but several: {codes}.")


def _page(rule: Rule) -> str:
    found_by = " and ".join(f"surestep {command}" for command in rule.commands)
    lines = [f"{rule.code} {rule.name} ({rule.severity}), found by {found_by}", "", rule.page]
    lines += ["", f"Fix: {rule.fix}"]
    if rule.is_fixable:
        lines.append("`surestep check --fix` fixes it where that is safe.")
    for heading, kind in (("Wrong", "bad"), ("Right", "good")):
        for example in list(rule.examples(kind).values())[:1]:
            lines += ["", f"{heading}:", "", textwrap.indent(read_example(example), "    ")]
    return "\n".join(lines)


def _describe(rule: Rule) -> dict[str, Any]:
    """Return a rule as JSON, with all its examples."""
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "commands": rule.commands,
        "summary": rule.summary,
        "page": rule.page,
        "fix": rule.fix,
        "fixable": rule.is_fixable,
        **{
            kind: {name: read_example(example) for name, example in rule.examples(kind).items()}
            for kind in ("bad", "good")
        },
    }
