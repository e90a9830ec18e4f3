"""`surestep check` and `surestep explain`."""

import json
import os
import subprocess
import sys
from functools import partial

import pytest

from surestep.doctor.rule import load_rule, load_rules
from tests.cli.conftest import environment
from tests.doctor.scripts import BAD, GOOD, notebook

CODES = [rule.code for rule in load_rules()]


@pytest.fixture(autouse=True)
def scripts(folder):
    (folder / "bad.py").write_text(BAD)
    (folder / "good.py").write_text(GOOD)
    return folder


def only(*words):
    return ("check", "--select", "SS101", *words)


def test_finding_is_printed_with_its_source_and_fix(surestep):
    answer = surestep(*only("bad.py"))
    assert (answer.code, answer.err) == (1, "")
    first, source, marks, fix, _, summary = answer.out.splitlines()
    assert first.startswith("bad.py:8:5 SS101 missing-zero-grad `optimizer.step()` uses")
    assert source == " 8 | optimizer.step()"
    assert marks == " | ^^^^^^^^^^^^^^^^"
    assert fix.startswith(" Fix: Call optimizer.zero_grad()")
    assert summary == ("1 finding (1 error) in 1 file. `surestep explain SS101` explains a rule.")


def test_correct_script_has_no_finding(surestep):
    answer = surestep("check", "good.py")
    assert (answer.code, answer.out, answer.err) == (0, "0 findings in 1 file.\n", "")


def test_current_folder_is_checked_by_default(surestep, scripts):
    (scripts / "sub").mkdir()
    (scripts / "sub/c.ipynb").write_text(notebook(BAD))
    out = surestep(*only()).out
    assert "bad.py:8:5" in out
    assert "sub/c.ipynb:cell 2:8:5" in out
    assert "in 3 files." in out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--select", "SS1"), 1),
        (("--select", "ss101"), 1),
        (("--select", "missing-zero-grad"), 1),
        (("--select", "SS101,SS1"), 1),
        (("--select=SS101",), 1),
        (("--select", "SS501", "--select", "SS101"), 1),
        (("--select", "SS1", "--ignore", "SS101"), 0),
        (("--select", "SS1", "--ignore", "SS501", "--ignore", "SS101"), 0),
        (("--ignore", "missing-zero-grad"), 0),
    ],
)
def test_rules_are_selected_by_code_start_of_code_or_name(surestep, words, code):
    assert surestep("check", "bad.py", *words).code == code
    assert surestep("check", *words, "bad.py").code == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gone.py",), "gone.py does not exist."),
        (("good.py", "--select", "SS1O1"), "There is no rule 'SS1O1'. Did you mean '"),
        (("good.py", "--ignore", "missing-zero"), "Did you mean 'missing-zero-grad'"),
        (("--select", "SS1O1", "good.py"), "There is no rule 'SS1O1'. Did you mean '"),
        (("--select", "SS999", "bad.py"), "no rule 'SS999'. `surestep explain` lists them."),
        (("--select", "SS101", "SS2", "bad.py"), "Separate rules by commas: --select SS101,SS2"),
        (("bad.py", "--ignore=SS1", "missing-zero-grad"), "--ignore SS1,missing-zero-grad"),
        (("--select", "bad.py"), "There is no rule 'bad.py'."),
        (("bad.py", "--format", "xml"), "--format"),
        (("bad.py", "--select", ""), "--select '' is empty. Give a value, such as --select SS1,"),
        (("bad.py", "--select=,"), "--select ',' is empty"),
        (("bad.py", "--ignore="), "or leave --ignore out"),
        (("bad.py", "--exclude", " "), "Give a value, such as --exclude build/, or leave"),
        (("",), "A path is empty: ''. Give a file or a folder; . is the current folder."),
        (("bad.py", ""), "A path is empty"),
    ],
)
def test_wrong_use_is_rejected(surestep, words, message):
    answer = surestep("check", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.split())


def test_json_holds_the_findings(surestep):
    answer = surestep(*only("bad.py", "good.py"), "--format", "json")
    assert answer.code == 1
    found = json.loads(answer.out)
    assert found["version"] == 1
    (finding,) = found["findings"]
    assert (finding["rule"], finding["file"], finding["line"]) == ("SS101", "bad.py", 8)
    assert finding["severity"] == "error"
    assert answer.err.startswith("1 finding (1 error) in 2 files.")


def test_github_format_annotates(surestep):
    answer = surestep(*only("bad.py"), "--format", "github")
    assert answer.code == 1
    assert answer.out.startswith("::error file=bad.py,line=8,col=5,title=SS101 missing-zero-grad::")


def test_sarif_describes_all_rules(surestep):
    answer = surestep(*only("bad.py"), "--format", "sarif")
    (run,) = json.loads(answer.out)["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == CODES
    assert [result["ruleId"] for result in run["results"]] == ["SS101"]


def test_settings_select_ignore_and_exclude(surestep, scripts):
    settings = scripts / "pyproject.toml"
    settings.write_text('[tool.surestep.check]\nignore = ["SS101"]\n')
    assert surestep("check").code == 0
    settings.write_text('[tool.surestep.check]\nselect = ["SS101"]\nexclude = ["bad.py"]\n')
    answer = surestep("check")
    assert (answer.code, answer.out) == (0, "0 findings in 1 file, 1 excluded.\n")


def test_command_line_selects_instead_of_the_settings(surestep, scripts):
    settings = '[tool.surestep.check]\nselect = ["SS101"]\nignore = ["SS101"]\n'
    (scripts / "pyproject.toml").write_text(settings)
    assert surestep("check").code == 0
    (scripts / "pyproject.toml").write_text(settings.replace('ignore = ["SS101"]', ""))
    assert surestep("check", "--ignore", "SS101").code == 0
    assert surestep("check").code == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('select = ["SS1O1"]', "There is no rule 'SS1O1'. Did you mean '"),
        ('exlude = ["a"]', "has no setting 'exlude'. Did you mean 'exclude'?"),
    ],
)
def test_wrong_settings_are_rejected_with_the_file(surestep, scripts, line, message):
    (scripts / "pyproject.toml").write_text(f"[tool.surestep.check]\n{line}\n")
    answer = surestep("check")
    assert answer.code == 2
    assert message in answer.err
    assert "pyproject.toml" in answer.err


def test_unreadable_file_is_reported_and_counted(surestep, scripts):
    (scripts / "broken.py").write_text("x = (\n")
    (scripts / "odd.py").write_bytes(b"x = '\xe4'\n")
    answer = surestep("check", "good.py", "broken.py", "odd.py")
    assert answer.code == 1
    assert answer.out == "0 findings in 1 file, 2 could not be read.\n"
    first, second = answer.err.splitlines()
    assert first == "broken.py:1: not checked: '(' was never closed."
    assert second.startswith("odd.py is not text in its encoding")


def test_folder_without_scripts_is_wrong_use(surestep, scripts):
    (scripts / "data").mkdir()
    (scripts / "data/.hidden").mkdir()
    (scripts / "data/.hidden/train.py").write_text(BAD)
    (scripts / "data/notes.txt").touch()
    answer = surestep("check", "data")
    assert (answer.code, answer.out) == (2, "")
    assert "There is no script (.py) or notebook (.ipynb) in data. Hidden" in answer.err
    (scripts / "data/old.py").touch()
    (scripts / "pyproject.toml").write_text('[tool.surestep.check]\nexclude = ["old.py"]\n')
    answer = surestep("check", "data")
    assert (answer.code, answer.out) == (0, "0 findings in 0 files, 1 excluded.\n")


@pytest.mark.parametrize("selector", ["SS117", "gradients-always-clipped"])
def test_rule_that_only_watches_is_named(surestep, selector):
    answer = surestep("check", "bad.py", "--select", f"SS101,{selector}")
    assert answer.code == 1
    assert answer.err.startswith(f"{selector}: only `surestep ")
    assert surestep("check", "bad.py", "--select", "SS1").err == ""


FORWARD = "import torch\n\nmodel = torch.nn.Linear(4, 1)\nmodel.forward(torch.ones(4))\n"


def test_fix_corrects_what_it_can_and_reports_what_remains(surestep, scripts):
    (scripts / "bad.py").write_text(FORWARD + BAD)
    first = surestep("check", "bad.py", "--select", "SS209,SS101")
    assert first.out.splitlines()[-1].find("`--fix` can fix 1.") > 0
    answer = surestep("check", "bad.py", "--fix", "--select", "SS209,SS101")
    assert (answer.code, answer.err) == (1, "1 fixed.\n")
    assert "SS101" in answer.out
    assert "SS209" not in answer.out
    assert (scripts / "bad.py").read_text() == FORWARD.replace(".forward(", "(") + BAD
    again = surestep("check", "bad.py", "--fix", "--select", "SS209")
    assert (again.code, again.out, again.err) == (0, "0 findings in 1 file.\n", "0 fixed.\n")


def test_diff_prints_the_changes_and_changes_nothing(surestep, scripts):
    (scripts / "a.py").write_text(FORWARD)
    answer = surestep("check", "a.py", "good.py", "--diff")
    assert (answer.code, answer.err) == (1, "--fix would fix 1 finding.\n")
    assert "--- a.py\n+++ a.py\n" in answer.out
    assert "-model.forward(torch.ones(4))\n+model(torch.ones(4))\n" in answer.out
    assert (scripts / "a.py").read_text() == FORWARD
    assert surestep("check", "good.py", "--diff").code == 0
    wrong = surestep("check", "a.py", "--diff", "--fix")
    assert wrong.code == 2
    assert "Give --diff without --fix" in wrong.err


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-8-sig"])
def test_diff_of_another_encoding_applies(scripts, encoding):
    """Check with the bytes of a pipe, as `git apply` reads them."""
    coding = "utf-8" if encoding == "utf-8-sig" else encoding
    text = f"# coding: {coding}\n{FORWARD.replace('model.', '# é' + chr(10) + 'model.')}"
    text = text.replace("\n\n", "\n").replace("\n", "\r\n")
    (scripts / "a.py").write_bytes(text.encode(encoding))
    command = [sys.executable, "-m", "surestep", "check", "--diff", "--select", "SS209", "a.py"]
    patch = subprocess.run(command, cwd=scripts, capture_output=True, env=environment()).stdout
    subprocess.run(["git", "apply", "-p0"], cwd=scripts, input=patch, check=True)
    fixed = text.replace(".forward(", "(").encode(encoding)
    assert (scripts / "a.py").read_bytes() == fixed


def test_file_that_cannot_be_fixed_is_reported_and_the_others_are_fixed(surestep, scripts):
    for name in ("a.py", "b.py"):
        (scripts / name).write_text(FORWARD)
    (scripts / "a.py").chmod(0o444)
    answer = surestep("check", "a.py", "b.py", "--fix")
    assert answer.code == 1
    assert answer.err.splitlines() == ["a.py is read-only and was not fixed.", "1 fixed."]
    assert (scripts / "b.py").read_text() == FORWARD.replace(".forward(", "(")


def test_json_says_what_is_fixable(surestep, scripts):
    (scripts / "bad.py").write_text(FORWARD + BAD)
    answer = surestep("check", "bad.py", "--select", "SS209,SS101", "--format", "json")
    fixable = {found["rule"]: found["fixable"] for found in json.loads(answer.out)["findings"]}
    assert fixable == {"SS209": True, "SS101": False}
    assert json.loads(surestep("explain", "SS209", "--json").out)["fixable"] is True


@pytest.fixture
def assumed(monkeypatch):
    """SS101 assumes something."""
    module = load_rule("SS101").module
    report = partial(module.at_event, assumed="Nothing else zeroes them.")
    monkeypatch.setattr(module, "at_event", report)


@pytest.mark.usefixtures("assumed")
def test_certain_leaves_out_assumed_findings(surestep, scripts):
    words = only("bad.py", "--no-cache")
    answer = surestep(*words)
    assert answer.code == 1
    assert "Assumed: Nothing else zeroes them." in answer.out
    assert "1 finding (1 warning) in 1 file." in answer.out
    nothing = (0, "0 findings in 1 file.\n", "")
    assert surestep(*words, "--certain") == nothing
    (scripts / "pyproject.toml").write_text("[tool.surestep.check]\ncertain = true\n")
    assert surestep(*words) == nothing
    surestep(*words, "--write-baseline", "known.json")
    assert json.loads((scripts / "known.json").read_text())["findings"] == []
    (scripts / "pyproject.toml").write_text("[tool.surestep.check]\ncertain = 1\n")
    wrong = surestep(*words)
    assert (wrong.code, "such as certain = true" in wrong.err) == (2, True)


def test_cache_gives_the_same_output(surestep, scripts):
    first = surestep("check")
    assert (scripts / ".cache/check").is_dir()
    assert surestep("check") == first
    assert surestep("check", "--no-cache") == first


def test_no_cache_writes_none(surestep, scripts):
    surestep("check", "--no-cache")
    assert not (scripts / ".cache").exists()


def test_exclude_leaves_files_out(surestep, scripts):
    answer = surestep("check", "bad.py", "good.py", "--exclude", "b*.py", "--exclude", "other")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "0 findings in 1 file, 1 excluded.\n"


def test_module_runs_as_the_command_does(scripts):
    done = subprocess.run(
        [sys.executable, "-m", "surestep", *only("bad.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_explain_lists_all_rules(surestep):
    answer = surestep("explain")
    assert (answer.code, answer.err) == (0, "")
    assert [line.split()[0] for line in answer.out.splitlines() if line.startswith("SS")] == CODES


@pytest.mark.parametrize("name", ["SS101", "ss101", "missing-zero-grad"])
def test_explain_prints_the_page_of_a_rule(surestep, name):
    answer = surestep("explain", name)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("SS101 missing-zero-grad (error), found by surestep check")
    assert "`backward()` adds to the gradients" in answer.out
    assert "Fix: Call optimizer.zero_grad()" in answer.out
    assert "Wrong:\n\n import torch\n" in answer.out
    assert "Right:\n\n import torch\n" in answer.out


@pytest.mark.parametrize("code", CODES)
def test_every_rule_can_be_explained(surestep, code):
    assert surestep("explain", code).code == 0


@pytest.mark.parametrize("start", ["SS1", "ss30"])
def test_explain_lists_the_rules_whose_codes_start_in_this_way(surestep, start):
    expected = [code for code in CODES if code.startswith(start.upper())]
    lines = surestep("explain", start).out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("SS")] == expected
    listed = json.loads(surestep("explain", start, "--json").out)
    assert [each["code"] for each in listed] == expected


def test_explain_prints_json(surestep):
    rule = json.loads(surestep("explain", "SS101", "--json").out)
    assert rule["code"] == "SS101"
    assert "check" in rule["commands"]
    assert rule["wrong"].startswith("import torch\n")
    assert "zero_grad()" in rule["right"]
    rules = json.loads(surestep("explain", "--json").out)
    assert [each["code"] for each in rules] == CODES
    assert rule in rules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SS1O1", "There is no rule 'SS1O1'. Did you mean '"),
        ("missing-zero", "Did you mean 'missing-zero-grad'"),
        ("SS99", "There is no rule 'SS99'."),
    ],
)
def test_explain_rejects_what_is_no_rule(surestep, name, message):
    answer = surestep("explain", name)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
