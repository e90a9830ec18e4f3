"""`surestep explain`."""

import sys
import textwrap
from json import dumps
from typing import Annotated, Any

import tyro

from surestep.base.errors import ConfigError, SurestepError
from surestep.base.text import print_escaped, print_json
from surestep.cli.parse import command
from surestep.doctor.rule import Rule, load_rules
from surestep.doctor.selection import describe_broken, find_unknown, is_selected


@command("explain")
def run(
    rule: Annotated[str | None, tyro.conf.arg(metavar="[RULE]")] = None, /, *, json: bool = False
) -> int:
    """Explain a rule of `surestep check` and `surestep watch`, or list rules.

    Args:
        rule: Its code or its name: SS101 or missing-zero-grad. The start of codes, such as SS1,
            lists these rules. Without it, all rules are listed.
        json: Print it as JSON.
    """
    rules = _find("SS" if rule is None else rule)
    is_list = rule is None or not {rule, rule.upper()} & {rules[0].code, rules[0].name}
    if json:
        rows = [_describe(found) for found in rules]
        print_json(dumps(rows if is_list else rows[0], indent=1))
    elif is_list:
        width = max(len(found.name) for found in rules)
        for found in rules:
            commands = ", ".join(found.commands)
            start = f"{found.code}  {found.severity:<7}  {commands:<12}  {found.name:<{width}}"
            print(f"{start}  {found.summary}")
        print("\n`surestep explain SS101` explains a rule.")
    else:
        print_escaped(_page(rules[0]))
    return 0


def _find(name: str) -> list[Rule]:
    """Return the rule of a code or a name, or the rules whose codes start in this way."""
    if (unknown := find_unknown(name)) is not None:
        raise ConfigError(unknown)
    broken = describe_broken([name])
    rules = [rule for rule in load_rules() if is_selected(rule.code, rule.name, [name])]
    if not rules:
        raise SurestepError("\n".join(broken))
    for text in broken:
        print_escaped(text, sys.stderr)
    return rules


def _page(rule: Rule) -> str:
    found_by = " and ".join(f"surestep {command}" for command in rule.commands)
    lines = [f"{rule.code} {rule.name} ({rule.severity}), found by {found_by}", "", rule.page]
    lines += ["", f"Fix: {rule.fix}"]
    if rule.is_fixable:
        lines.append("`surestep check --fix` fixes it where that is safe.")
    for heading, example in (("Wrong", rule.wrong), ("Right", rule.right)):
        lines += ["", f"{heading}:", "", textwrap.indent(example, "    ")]
    return "\n".join(lines)


def _describe(rule: Rule) -> dict[str, Any]:
    """Return a rule as JSON."""
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "commands": rule.commands,
        "summary": rule.summary,
        "page": rule.page,
        "fix": rule.fix,
        "fixable": rule.is_fixable,
        "wrong": rule.wrong,
        "right": rule.right,
    }
