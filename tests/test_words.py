"""The text is plain technical English: it uses no word of words.txt.

`python -m tests.words PATH...` prints each use with what to write instead.
"""

from pathlib import PurePosixPath

import pytest

from tests import words
from tests.words import ROOT, find_names, find_words, keep_prose, list_files, read_rules

PAGES = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"]
CHECKED = [ROOT / path for path in ["src", "docs", ".github", "changelog", *PAGES]]


RULES = words.default_rules()


def shown(path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(ROOT).as_posix())


def test_text_uses_plain_words():
    hits = [
        f"{shown(path)}:{hit.line}: {hit.word} -> {hit.instead}"
        for path in list_files(CHECKED)
        for hit in words.check_file(path, names=False)
    ]
    assert hits == []


def test_identifiers_use_plain_words():
    hits = [
        f"{shown(path)}:{hit.line}: {hit.word} -> {hit.instead}"
        for path in list_files([ROOT / "src"])
        if path.suffix == ".py"
        for hit in find_names(path.read_text(encoding="utf-8"), RULES, str(shown(path)))
    ]
    assert hits == []


@pytest.mark.parametrize(
    "sentence",
    [
        "It begins anew.",
        "the run goes\n    on from step 3",
        "Nobody was told.",
        "The value stands in status.json.",
        "This is no option.",
        "Use it where nothing is set.",
        "The result is not bit for bit.",
    ],
)
def test_listed_word_is_found(sentence):
    assert find_words(sentence, RULES)


@pytest.mark.parametrize(
    "sentence",
    [
        "Resume the run; it continues at step 3, bit for bit.",
        "There is no checkpoint, and the run is no longer locked.",
        "cutmix, cutout and held-out data",
        "If the run has finished, it says so.",
    ],
)
def test_plain_words_are_not_reported(sentence):
    assert find_words(sentence, RULES) == []


def test_comments_and_strings_are_checked_and_code_is_not():
    source = (
        "nobody = f('anew')  # nobody\n"
        "text = (\n"
        "    'the run goes '\n"
        "    f'on {told} now'\n"
        ")\n"
        "pair = ('go', 'on')\n"
    )
    hits = find_words(keep_prose(source), RULES)
    assert [(hit.line, hit.word) for hit in hits] == [(1, "anew"), (1, "nobody"), (3, "goes on")]


def test_parts_of_an_identifier_are_checked():
    hits = find_names("if told_by(x):\n    k = _said\n    kind = 'told'\n", RULES)
    assert [(hit.line, hit.word) for hit in hits] == [(1, "told_by"), (2, "_said"), (2, "k")]


def test_exception_allows_a_word_in_its_files_only():
    rules = read_rules("[text]\nwalk -> pass\n[except]\nsrc/a: os\\.walk\n")
    assert find_words("os.walk(x)", rules, "src/a/b.py") == []
    assert [hit.word for hit in find_words("os.walk, walk", rules, "src/a/b.py")] == ["walk"]
    assert find_words("os.walk(x)", rules, "src/ab.py")


def test_line_that_is_not_a_rule_is_an_error():
    with pytest.raises(ValueError, match="not a rule"):
        read_rules("[text]\nanew = again\n")
