"""`surestep check --baseline`: findings that are known are not reported."""

import errno
import json
import os
import shlex
import stat

import pytest

from surestep.doctor import rule as rules
from tests.doctor.scripts import BAD, GOOD, notebook

ONLY = ("check", "--select", "SS101")


@pytest.fixture(autouse=True)
def scripts(folder):
    (folder / "src").mkdir()
    (folder / "src/bad.py").write_text(BAD)
    (folder / "src/good.py").write_text(GOOD)
    (folder / "src/cells.ipynb").write_text(notebook(BAD))
    return folder


@pytest.fixture
def written(surestep, scripts):
    """The baseline of the scripts."""
    answer = surestep(*ONLY, "src", "--write-baseline", "known.json")
    assert (answer.code, answer.out, answer.err) == (0, "known.json has 2 findings.\n", "")
    return scripts / "known.json"


def check(surestep, *words):
    return surestep(*ONLY, *(words or ["src"]), "--baseline", "known.json")


def test_baseline_has_a_line_per_finding(written):
    table = json.loads(written.read_text())
    entry = {"rule": "SS101", "source": "optimizer.step()", "count": 1}
    files = [{"file": "src/bad.py", **entry}, {"file": "src/cells.ipynb", **entry}]
    assert table == {"version": 1, "findings": files}
    assert len(written.read_text().splitlines()) == 5 + len(files)


def test_known_findings_are_not_reported(surestep, written):
    answer = check(surestep)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "0 findings in 3 files, 2 in the baseline.\n"


def test_moved_and_indented_line_is_known_and_the_same_line_again_is_new(
    surestep, scripts, written
):
    moved = BAD.replace("    optimizer.step()", "    if True:\n        optimizer.step()")
    assert moved != BAD
    (scripts / "src/bad.py").write_text(f"# A line.\n\n{moved}")
    (scripts / "src/cells.ipynb").write_text(notebook("# Another cell.", BAD))
    assert check(surestep).code == 0
    (scripts / "src/bad.py").write_text(f"{BAD}\n\n{BAD}")
    answer = check(surestep)
    assert answer.code == 1
    assert answer.out.count("SS101 missing-zero-grad") == 1
    assert answer.out.splitlines()[-1].startswith("1 finding (1 error) in 3 files, 2 in the base")


def test_known_finding_of_one_file_is_new_in_another_and_with_another_line(
    surestep, scripts, written
):
    (scripts / "src/bad.py").rename(scripts / "src/renamed.py")
    answer = check(surestep)
    assert answer.code == 1
    assert "src/renamed.py:8:5 SS101" in answer.out
    (scripts / "src/renamed.py").rename(scripts / "src/bad.py")
    (scripts / "src/bad.py").write_text(BAD.replace("optimizer", "opt"))
    assert check(surestep).code == 1


def test_findings_that_are_not_found_again_are_one_line(surestep, scripts, written):
    line = "Not found again: {} of known.json. --write-baseline writes the file without what is "
    (scripts / "src/bad.py").write_text(GOOD)
    answer = check(surestep)
    assert answer.code == 0
    assert answer.err.startswith(line.format("1 finding"))
    assert answer.err.count("\n") == 1
    (scripts / "src/cells.ipynb").unlink()
    assert check(surestep).err.startswith(line.format("2 findings"))
    assert surestep(*ONLY, "src", "--write-baseline", "known.json").out.endswith("0 findings.\n")
    assert check(surestep).err == ""


def test_finding_that_was_not_looked_for_is_not_called_missing(surestep, scripts, written):
    assert check(surestep, "src/good.py").err == ""
    answer = surestep("check", "src", "--select", "SS501", "--baseline", "known.json")
    assert (answer.code, answer.err) == (0, "")
    (scripts / "src/bad.py").write_text("x = (\n")
    answer = check(surestep)
    assert answer.code == 1
    assert answer.err == "src/bad.py:1: not checked: '(' was never closed.\n"


def test_rule_that_no_longer_exists_is_missing(surestep, written):
    written.write_text(written.read_text().replace("SS101", "SS000"))
    answer = check(surestep)
    assert answer.code == 1
    assert answer.err.startswith("Not found again: 2 findings of known.json.")


@pytest.fixture
def unloadable(monkeypatch):
    """SS101 cannot be loaded."""
    load = rules.import_module

    def spoiled(name):
        if "ss101" in name:
            raise ImportError("no such name")
        return load(name)

    monkeypatch.setenv("SURESTEP_CACHE_DIR", "another_cache")
    monkeypatch.setattr(rules, "import_module", spoiled)
    rules._load_all.cache_clear()
    rules.load_rule.cache_clear()
    yield
    rules._load_all.cache_clear()
    rules.load_rule.cache_clear()


@pytest.fixture
def failing(monkeypatch):
    """SS101 fails on src/cells.ipynb, and finds nothing elsewhere."""

    def check(program):
        if program.files[0].path.suffix == ".ipynb":
            raise ZeroDivisionError("a bug")
        return ()

    monkeypatch.setenv("SURESTEP_CACHE_DIR", "another_cache")
    monkeypatch.setattr(rules.load_rule("SS101").module, "check", check)


@pytest.fixture
def unfollowed(monkeypatch):
    """No script can be followed, so that no rule is applied."""

    def follow(file, project):
        raise ZeroDivisionError("a bug")

    monkeypatch.setenv("SURESTEP_CACHE_DIR", "another_cache")
    monkeypatch.setattr("surestep.doctor.check.follow", follow)


@pytest.mark.parametrize("broken", ["unloadable", "failing", "unfollowed"])
def test_finding_of_a_rule_that_failed_is_not_called_missing_and_is_kept(
    surestep, written, request, broken
):
    before = written.read_text()
    request.getfixturevalue(broken)
    answer = check(surestep)
    assert "This is a bug of surestep" in answer.err
    assert "Not found again" not in answer.err
    answer = surestep(*ONLY, "src", "--write-baseline", "known.json")
    kept = "2 of them of files or rules that were not checked"
    assert (answer.code, answer.out) == (1, f"known.json has 2 findings, {kept}.\n")
    assert written.read_text() == before


def test_writing_keeps_what_was_not_checked(surestep, scripts, written):
    (scripts / "a.py").write_text(FORWARD)
    words = ("--write-baseline", "known.json")
    answer = surestep("check", "a.py", "--select", "SS209", *words)
    kept = "2 of them of files or rules that were not checked"
    assert (answer.code, answer.out) == (0, f"known.json has 3 findings, {kept}.\n")
    answer = surestep("check", ".", "--select", "SS101,SS209", "--baseline", "known.json")
    assert (answer.code, answer.err) == (0, "")
    assert surestep("check", "src", "--select", "SS209", *words).out.endswith(
        ", 3 of them of files or rules that were not checked.\n"
    )
    (scripts / "src/bad.py").write_text("x = (\n")
    assert surestep(*ONLY, "src", *words).code == 1
    assert len(json.loads(written.read_text())["findings"]) == 3
    (scripts / "src/bad.py").write_text(GOOD)
    (scripts / "src/cells.ipynb").unlink()
    assert surestep(*ONLY, "src", *words).out.startswith("known.json has 1 finding, 1 of")


def test_writing_after_a_merge_keeps_what_was_not_checked(surestep, scripts, written):
    """Of both sides, with the marks of the merge or without the comma between them."""
    lines = written.read_text().splitlines(keepends=True)
    mine, theirs = lines[3].rstrip() + "\n", lines[4]
    marks = ("<<<<<<< HEAD\n", "=======\n", ">>>>>>> other branch\n")
    for merged in (
        [marks[0], mine.replace(",\n", "\n"), marks[1], theirs, marks[2]],
        [mine.replace("},\n", "}\n"), theirs],
    ):
        written.write_text("".join([*lines[:3], *merged, *lines[5:]]))
        answer = check(surestep)
        assert answer.code == 2
        assert "Write it again: " in answer.err
        answer = surestep(*ONLY, "src/good.py", "--write-baseline", "known.json")
        assert answer.out.startswith("known.json has 2 findings, 2 of them")
        assert written.read_text() == "".join(lines)


@pytest.mark.parametrize("format", ["json", "sarif"])
def test_output_of_check_is_not_overwritten(surestep, scripts, format):
    output = surestep(*ONLY, "src", "--format", format).out
    (scripts / "known.json").write_text(output)
    answer = surestep(*ONLY, "src", "--write-baseline", "known.json")
    assert answer.code == 2
    assert (scripts / "known.json").read_text() == output


@pytest.mark.parametrize("name", ["known.json", "sub/known.json"])
def test_setting_names_the_baseline_from_any_folder(surestep, scripts, monkeypatch, name):
    settings = f'[tool.surestep.check]\nbaseline = "{name}"\nselect = ["SS101"]\n'
    (scripts / "pyproject.toml").write_text(settings)
    (scripts / "sub").mkdir()
    assert surestep("check").code == 2
    assert surestep("check", "--write-baseline", name).code == 0
    file = json.loads((scripts / name).read_text())["findings"][0]["file"]
    assert file == ("../src/bad.py" if "/" in name else "src/bad.py")
    assert surestep("check").out == "0 findings in 3 files, 2 in the baseline.\n"
    monkeypatch.chdir(scripts / "src")
    assert surestep("check", "bad.py").out == "0 findings in 1 file, 1 in the baseline.\n"
    (scripts / "empty.json").write_text('{"version": 1, "findings": []}')
    assert surestep("check", "bad.py", "--baseline", "../empty.json").code == 1


def test_baseline_is_found_through_links(surestep, scripts, written, monkeypatch):
    (scripts / "link").symlink_to(scripts / "src")
    assert check(surestep, "link").out == "0 findings in 3 files, 2 in the baseline.\n"


@pytest.mark.parametrize("format", ["json", "sarif", "github"])
def test_programs_get_only_what_is_new(surestep, scripts, written, format):
    (scripts / "src/new.py").write_text(BAD)
    for _ in range(2):  # the second time from the cache
        answer = surestep(*ONLY, "src", "--baseline", "known.json", "--format", format)
        assert answer.code == 1
        assert "src/new.py" in answer.out
        assert "src/bad.py" not in answer.out
        assert answer.err.startswith("1 finding (1 error) in 4 files, 2 in the baseline.")


FORWARD = "import torch\n\nmodel = torch.nn.Linear(4, 1)\nmodel.forward(torch.ones(4))\n"


def test_nothing_is_fixed_if_the_baseline_cannot_be_overwritten(surestep, scripts):
    (scripts / "a.py").write_text(FORWARD)
    (scripts / "known.json").write_text("[]")
    words = ("a.py", "--select", "SS209", "--fix", "--write-baseline", "known.json")
    assert surestep("check", *words).code == 2
    assert (scripts / "a.py").read_text() == FORWARD


def test_fix_corrects_known_findings(surestep, scripts):
    (scripts / "a.py").write_text(FORWARD)
    words = ("check", "a.py", "--select", "SS209")
    assert surestep(*words, "--write-baseline", "known.json").code == 0
    answer = surestep(*words, "--baseline", "known.json", "--fix")
    assert (answer.code, answer.out) == (0, "0 findings in 1 file.\n")
    assert answer.err.splitlines()[0] == "1 fixed."
    assert answer.err.splitlines()[1].startswith("Not found again: 1 finding")
    assert (scripts / "a.py").read_text() == FORWARD.replace(".forward(", "(")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            None,
            "The baseline known.json does not exist. Write it: surestep check src --write-baseline",
        ),
        ("{", "known.json is not a baseline of surestep check: Expecting property name"),
        ("[]", 'it is not "version": 1 and a list of "findings" alone'),
        ('{"version": 1}', 'it is not "version": 1 and a list of "findings" alone'),
        ('{"version": true, "findings": []}', 'it is not "version": 1'),
        ('{"version": 1, "findings": [3]}', "entry 1 is not one with file, rule, source, count"),
        (
            '{"version": 1, "findings": [{"file": "a", "rule": "b", "source": "c", "count": 0}]}',
            "entry 1 is not one with file, rule, source, count",
        ),
        ('{"version": 2, "findings": []}', "version 2, and this surestep reads 1. Install a newer"),
    ],
)
def test_missing_or_damaged_baseline_is_rejected(surestep, scripts, text, message):
    if text is not None:
        (scripts / "known.json").write_text(text)
    answer = check(surestep)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("ConfigError: ")
    assert message in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--write-baseline", "a", "--baseline", "b"), "Give --write-baseline without"),
        (("--write-baseline", "a", "--format", "json"), "Give --write-baseline without"),
        (("--write-baseline", "a", "--diff"), "Give --write-baseline without"),
        (("--baseline", "a", "--diff"), "Give --diff without --baseline"),
        (("--write-baseline", ""), "names no file. Give a path: --write-baseline surestep-b"),
        (("--baseline", ""), "--baseline '' names no file. Give a path: --baseline surestep-b"),
        (("--baseline=",), "--baseline '' names no file. Give a path: --baseline surestep-b"),
        (("--write-baseline", "no/a"), "no/a cannot be written: No such file or directory."),
        (("--baseline", "src"), "src cannot be read: Is a directory."),
    ],
)
def test_wrong_use_is_rejected(surestep, words, message):
    answer = surestep(*ONLY, "src", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.split())


def test_hint_is_a_command_that_writes_the_baseline(surestep, scripts):
    (scripts / "my src").mkdir()
    (scripts / "my src/bad.py").write_text(BAD)
    words = ("my src", "src", "--baseline", "no such.json")
    for text in (None, "{\n"):  # missing, then damaged
        if text:
            (scripts / "no such.json").write_text(text)
        answer = surestep(*ONLY, *words)
        assert answer.code == 2
        line = " ".join(answer.err.split()).split("surestep check", maxsplit=-1)[-1]
        assert line == " 'my src' src --write-baseline 'no such.json'"
        assert surestep("check", *shlex.split(line)).code == 0
        assert surestep(*ONLY, *words).code == 0


@pytest.mark.parametrize("line", ["baseline = []", 'baseline = ""'])
def test_setting_is_a_path(surestep, scripts, line):
    (scripts / "pyproject.toml").write_text(f"[tool.surestep.check]\n{line}\n")
    answer = surestep("check")
    assert answer.code == 2
    assert "baseline is a path, such as baseline" in answer.err


@pytest.mark.parametrize(
    ("before", "code"),
    [
        (BAD, 2),
        (notebook(BAD), 2),
        ("[]", 2),
        ("", 0),
        ('{\n "version": 1,\n<<<<<<< a\n "findings": [', 0),
        ('{\n "findings": [\n  {"code": "SS101", "file": "src/bad.py"}\n ]\n}\n', 2),
        ('{\n "version": 1,\n "findings": [],\n "summary": 3\n}\n', 2),
        (notebook('{"findings"}').replace('"nbformat"', '"findings": [], "nbformat"'), 2),
        ('{"version": 2, "findings": []}', 2),
        ('{"version": 1, "findings": []}', 0),
    ],
)
def test_only_a_baseline_is_overwritten(surestep, scripts, before, code):
    (scripts / "known.json").write_text(before)
    answer = surestep(*ONLY, "src", "--write-baseline", "known.json")
    assert answer.code == code
    if code:
        problem = "has version 2" if "2," in before else "exists and is not a baseline."
        assert answer.err.startswith(f"ConfigError: known.json {problem}")
        assert (scripts / "known.json").read_text() == before
    else:
        assert check(surestep).code == 0


def test_failed_writing_leaves_the_file_as_it_was(surestep, scripts, written, monkeypatch):
    def fsync(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    before, names = written.read_bytes(), sorted(os.listdir(scripts))
    (scripts / "src/bad.py").write_text(GOOD)
    monkeypatch.setattr("surestep.base.files.fsync", fsync)
    answer = surestep(*ONLY, "src", "--write-baseline", "known.json")
    assert answer.code == 2
    assert "known.json cannot be written: No space left on device." in answer.err
    assert (written.read_bytes(), sorted(os.listdir(scripts))) == (before, names)


def test_writing_keeps_a_link_and_the_permissions(surestep, scripts, written):
    written.chmod(0o640)
    (scripts / "link.json").symlink_to(written)
    (scripts / "src/bad.py").write_text(GOOD)
    assert surestep(*ONLY, "src", "--write-baseline", "link.json").code == 0
    assert (scripts / "link.json").is_symlink()
    assert stat.S_IMODE(written.stat().st_mode) == 0o640
    assert len(json.loads(written.read_text())["findings"]) == 1


@pytest.mark.parametrize("option", ["--baseline", "--write-baseline"])
def test_pipe_is_rejected(surestep, scripts, option):
    os.mkfifo(scripts / "known.json")
    answer = surestep(*ONLY, "src", option, "known.json")
    assert (answer.code, answer.out) == (2, "")
    assert "known.json is not a regular file. Name a different one." in answer.err


def test_byte_order_mark_is_ignored(surestep, written):
    written.write_text(written.read_text(), encoding="utf-8-sig")
    assert check(surestep).out == "0 findings in 3 files, 2 in the baseline.\n"
    assert surestep(*ONLY, "src", "--write-baseline", "known.json").code == 0
    assert written.read_bytes().startswith(b"{")


def test_unreadable_file_fails_the_writing_of_a_baseline(surestep, scripts):
    (scripts / "src/broken.py").write_text("x = (\n")
    answer = surestep(*ONLY, "src", "--write-baseline", "known.json")
    assert (answer.code, answer.out) == (1, "known.json has 2 findings.\n")
