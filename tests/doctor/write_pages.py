"""Write the pages of the rules: `python -m tests.doctor.write_pages`.

docs/rules/ has one page for each rule, and a table of all.
"""

from pathlib import Path

from surestep.doctor.rule import Rule, load_rules

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
HEADER = "<!-- Written by `python -m tests.doctor.write_pages`: edit the module of the rule. -->"


def render_pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    rules = load_rules()
    pages = {f"{name_of(rule)}.md": render_page(rule) for rule in rules}
    return {"README.md": render_table(rules), **pages}


def name_of(rule: Rule) -> str:
    return f"{rule.code}-{rule.name}".lower()


def render_page(rule: Rule) -> str:
    parts = [HEADER, f"# {rule.code} {rule.name} ({rule.severity})", rule.page]
    parts += [f"**Fix:** {rule.fix}"]
    if rule.is_fixable:
        parts += [f"`surestep check --fix --select {rule.code}` fixes it where that is safe."]
    for heading, example in (("Wrong", rule.wrong), ("Right", rule.right)):
        # "py" and not "python": tests/test_docs.py does not run it.
        parts += [f"## {heading}", f"```py\n{example}\n```"]
    return "\n\n".join(parts) + "\n"


def render_table(rules: tuple[Rule, ...]) -> str:
    rows = [
        f"| [{rule.code}]({name_of(rule)}.md) | {rule.severity} | {', '.join(rule.commands)} "
        f"| {rule.name} | {escape(rule.summary)} |"
        for rule in rules
    ]
    intro = (
        "The mistakes that [`surestep check`](../doctor.md) finds in the source of a script, that\n"
        "`surestep watch` finds while it runs, and that `surestep train` finds in its run. "
        "`surestep explain\nSS101` prints a page. "
        "[Findings in code of others](ecosystem.md) lists some that they found."
    )
    head = "| code | severity | found by | name | summary |\n|---|---|---|---|---|"
    return "\n\n".join([HEADER, "# Rules", intro, "\n".join([head, *rows])]) + "\n"


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    pages = render_pages()
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        if path.name not in pages and path.read_text(encoding="utf-8").startswith(HEADER):
            path.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
