"""The words that surestep's text does not use: `python -m tests.words PATH...` prints each use.

Of a Python file the comments and strings are read against the rules in `[text]` of `words.txt`,
and the names against those in `[names]`; of any other file the full text.
"""

import functools
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
RULES = HERE / "words.txt"
CODE = "\0"  # replaces code between two strings, so that no phrase matches across it
QUOTES = re.compile(r"^[a-zA-Z]{0,2}(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$")


class Rule(NamedTuple):
    """A pattern, and what to write instead of what it matches.

    What `quick` does not find in the text in lower case, the pattern does not match. It takes a
    seventh of the time: it begins with a letter and respects case, so re searches for that letter.
    """

    pattern: re.Pattern[str]
    quick: re.Pattern[str]
    instead: str


class Hit(NamedTuple):
    """A use of a word: where it is, what it is, and what to write."""

    line: int
    word: str
    instead: str


class Rules(NamedTuple):
    """The content of `words.txt`."""

    text: list[Rule]
    names: dict[str, str]
    exceptions: list[tuple[str, re.Pattern[str]]]

    def allowed(self, path: str) -> list[re.Pattern[str]]:
        """Return the patterns that a file may use."""
        return [pattern for start, pattern in self.exceptions if is_under(path, start)]


def read_rules(source: str) -> Rules:
    """Parse a list of words; raise ValueError for a line that is not a rule."""
    rules, section = Rules([], {}, []), ""
    for line in source.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if (header := re.match(r"\[(text|names|except)\]", line)) is not None:
            section = header[1]
        elif section == "except":
            path, _, pattern = line.partition(": ")
            rules.exceptions.append((path, re.compile(pattern, re.IGNORECASE)))
        else:
            pattern, arrow, instead = line.partition(" -> ")
            if not arrow or not instead.strip():
                raise ValueError(f"not a rule: {line!r}")
            if section == "names":
                rules.names[pattern] = instead
            else:
                rules.text.append(make_rule(pattern.replace(" ", r"\s+"), instead))
    return rules


def make_rule(pattern: str, instead: str) -> Rule:
    """Compile the pattern of a rule."""
    is_plain = "(?" not in pattern  # without word boundaries, a lookahead could exclude more
    quick = pattern.replace(r"\b", "") if is_plain else pattern
    flags = re.MULTILINE if quick.islower() else re.MULTILINE | re.IGNORECASE
    return Rule(
        re.compile(pattern, re.IGNORECASE | re.MULTILINE), re.compile(quick, flags), instead
    )


@functools.cache
def default_rules() -> Rules:
    """Return the rules of `words.txt`."""
    return read_rules(RULES.read_text(encoding="utf-8"))


def keep_prose(source: str) -> str:
    """Return Python source with code as CODE, except comments and the insides of strings.

    Lines stay, columns do not: each line has one CODE for all code that is not interrupted.
    """
    lines = [re.sub(r"\S", CODE, line) for line in source.splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = " " + token.string[1:]
        elif token.type == tokenize.STRING:
            text = QUOTES.sub(lambda quote: " " * len(quote[0]), token.string)
            if "f" in token.string[: token.string.index(find_quote(token.string))].lower():
                text = re.sub(r"\{[^{}\n]*\}", lambda field: CODE * len(field[0]), text)
        elif tokenize.tok_name[token.type].startswith("FSTRING"):
            is_text = token.type == getattr(tokenize, "FSTRING_MIDDLE", None)
            text = token.string if is_text else " " * len(token.string)
        else:
            continue
        overwrite(lines, token.start, text)
    return re.sub(f"{CODE}[{CODE} ]*", CODE, "".join(lines))


def find_quote(string: str) -> str:
    """Return the quote that a string literal begins with."""
    return min("\"'", key=lambda quote: string.find(quote) % (len(string) + 1))


def overwrite(lines: list[str], start: tuple[int, int], text: str) -> None:
    """Write text over the lines, from a row and column."""
    row, column = start[0] - 1, start[1]
    for part in text.split("\n"):
        line = lines[row]
        lines[row] = line[:column] + part + line[column + len(part) :]
        row, column = row + 1, 0


def iter_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of every identifier of Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.start[0], token.string


def find_words(text: str, rules: Rules, path: str = "") -> list[Hit]:
    """Return every use of a word of `[text]`, except those that the path may use."""
    allowed = rules.allowed(path)
    allowed_spans = [match.span() for pattern in allowed for match in pattern.finditer(text)]
    hits, lowered = [], text.lower()
    for rule in rules.text:
        if not rule.quick.search(lowered):
            continue
        for match in rule.pattern.finditer(text):
            first, last = match.span()
            if any(start <= first and last <= end for start, end in allowed_spans):
                continue
            line = text.count("\n", 0, first) + 1
            hits.append(Hit(line, " ".join(match[0].split()), rule.instead))
    return sorted(hits)


def find_names(source: str, rules: Rules, path: str = "") -> list[Hit]:
    """Return every identifier with a word of `[names]`, except those that the path may use."""
    allowed = rules.allowed(path)
    hits = set()
    for line, name in iter_names(source):
        if any(pattern.fullmatch(name) for pattern in allowed):
            continue
        parts = {name, *(part for part in name.lower().split("_") if len(part) > 1)}
        hits |= {Hit(line, name, rules.names[part]) for part in parts & rules.names.keys()}
    return sorted(hits)


def is_under(path: str, start: str) -> bool:
    """Return whether a path is a file or inside a directory."""
    return path == start or path.startswith(start.rstrip("/") + "/")


def check_file(path: Path, *, names: bool = True) -> list[Hit]:
    """Return the hits of a file: of a Python file in its prose and, if asked, in its names."""
    text, rules = path.read_text(encoding="utf-8"), default_rules()
    shown = path.resolve().relative_to(ROOT).as_posix()
    if path.suffix != ".py":
        return find_words(text, rules, shown)
    hits = find_words(keep_prose(text), rules, shown)
    return sorted([*hits, *(find_names(text, rules, shown) if names else [])])


def list_files(paths: list[Path]) -> list[Path]:
    """Return the Python files, pages and forms at or under the paths."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        files += [file for file in inside if file.suffix in (".py", ".md", ".yml") or file == path]
    return [file for file in files if file.is_file()]


def main(arguments: list[str]) -> int:
    """Print each hit as `path:line: word -> write`; `--text` leaves the names out."""
    names = "--text" not in arguments
    paths = [Path(name) for name in arguments if name != "--text"]
    found = 0
    for path in list_files(paths or [ROOT / "src", ROOT / "docs", ROOT / "README.md"]):
        for hit in check_file(path, names=names):
            print(f"{path}:{hit.line}: {hit.word} -> {hit.instead}")
            found += 1
    print(f"{found} to rewrite", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
