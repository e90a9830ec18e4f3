"""Remove from template code what a Plan does not need.

A line that ends with `# ? flag !other` stays if `flag` is on and `other` is off; otherwise it goes,
with the lines that are indented below it. If it ends with `# | flag`, only that line goes, and
those below it move to its indentation. All marks go.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from surestep.eject.layout import WIDTH

_MARK = re.compile(r"\s*# ([?|]) ([\w! ]+)$")
_CLOSING = re.compile(r"\s*[)\]}]+[:,]?( -> .*:)?$")


def specialize(text: str, flags: Collection[str]) -> str:
    """Return template code with the lines that these flags keep.

    Args:
        text: the code with its marks.
        flags: those that are on; all others are off.
    """
    return "".join(f"{line}\n" for line in _return_values(_fold([*_kept_lines(text, flags)])))


def marks_of(text: str) -> set[str]:
    """Return the flags that the marks of template code name."""
    marks = (_MARK.search(line) for line in text.splitlines())
    return {name.lstrip("!") for mark in marks if mark for name in mark[2].split()}


def remove_marks(text: str) -> str:
    """Return template code with all of its lines, without their marks."""
    return "".join(f"{_MARK.sub('', line)}\n" for line in text.splitlines())


def _kept_lines(text: str, flags: Collection[str]) -> Iterator[str]:
    removed: int | None = None  # the indentation of a line that goes with those below it
    lifted: list[int] = []  # of lines that went alone
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if removed is not None:
            if line and depth > removed:
                continue
            ends_removed, removed = depth == removed and bool(_CLOSING.match(line)), None
            if ends_removed:
                continue
        while lifted and line and depth <= lifted[-1]:
            lifted.pop()
        mark = _MARK.search(line)
        if mark is None or _holds(mark[2], flags):
            code = line if mark is None else line[: mark.start()]
            yield code[4 * len(lifted) :]
        elif mark[1] == "|":
            lifted.append(depth)
        else:
            removed = depth


def _holds(condition: str, flags: Collection[str]) -> bool:
    return all(
        (name.lstrip("!") in flags) is not name.startswith("!") for name in condition.split()
    )


def _fold(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines, with calls and signatures in one line if they fit now."""
    index = 0
    while index < len(lines):
        end = index + 1
        depth = len(lines[index]) - len(lines[index].lstrip())
        if lines[index].endswith("("):
            while end < len(lines) and _is_member(lines[end], depth + 4):
                end += 1
            members = " ".join(line.strip() for line in lines[index + 1 : end]).rstrip(",")
            folded = f"{lines[index]}{members}{lines[end].lstrip()}"
            if end > index + 1 and _CLOSING.match(lines[end]) and len(folded) <= WIDTH:
                yield folded
                index = end + 1
                continue
        yield lines[index]
        index += 1


def _return_values(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; a name that is set to be returned in the next line is left out."""
    held: str | None = None
    for line in lines:
        mark = None if held is None else re.fullmatch(r"( +)(\w+) = (.+)", held)
        if mark is not None and line == f"{mark[1]}return {mark[2]}":
            held = f"{mark[1]}return {mark[3]}"
            continue
        if held is not None:
            yield held
        held = line
    if held is not None:
        yield held


def _is_member(line: str, depth: int) -> bool:
    return line.endswith(",") and len(line) - len(line.lstrip()) == depth
