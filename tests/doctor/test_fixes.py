"""`surestep check --fix` mends a mistake, changes nothing else, and never loses a file."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from surestep.doctor import fix_files as module
from surestep.doctor.cache import ResultCache
from surestep.doctor.check import check_file
from surestep.doctor.check_files import check_files
from surestep.doctor.finding import Edit
from surestep.doctor.fix_files import FixError, apply_edits, choose_edits, fix_file
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project, parse_source
from tests.doctor.examples import list_examples
from tests.doctor.scripts import BAD, notebook

RULES = load_rules()
CODES = tuple(rule.code for rule in RULES)
FIXABLE = [rule for rule in RULES if rule.is_fixable]
FORWARD = "import torch\n\nmodel = torch.nn.Linear(4, 1)\nmodel.forward(torch.ones(4))\n"
FIXED = FORWARD.replace(".forward(", "(")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fix(name, codes=CODES):
    (report,) = check_files([(Path(name), codes)], ResultCache(None))
    return fix_file(report, codes)


def findings_of(text, folder):
    (folder / "after.py").write_text(text)
    (report,) = check_files([(Path("after.py"), CODES)], ResultCache(None))
    assert report.problem == ""
    return {finding.rule for finding in report.findings}


@pytest.mark.parametrize("rule", FIXABLE, ids=lambda rule: rule.code)
def test_fixable_rule_fixes_a_bad_example(rule, folder):
    fixed = 0
    for example in list_examples():
        if (example.code, example.kind) != (rule.code, "bad"):
            continue
        (folder / example.path.name).write_text(example.text)
        found = fix(example.path.name)
        if found is None:
            continue
        fixed += 1
        assert rule.code not in findings_of(found.after, folder)
        exec(compile(found.after, example.name, "exec"), {"__name__": "__main__"})
    assert fixed >= 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")'),
        (
            "torch.cuda.amp.autocast(False, torch.float16)",
            'torch.amp.autocast("cuda", enabled=False, dtype=torch.float16)',
        ),
        ("torch.cpu.amp.autocast(dtype=None)", 'torch.amp.autocast("cpu", dtype=None)'),
        ("torch.cuda.amp.GradScaler(2.0)", 'torch.amp.GradScaler("cuda", 2.0)'),
        ("torch.cuda.amp.GradScaler(\n    2.0,\n)", 'torch.amp.GradScaler(\n    "cuda", 2.0,\n)'),
        ("torch.cuda.amp.GradScaler((2.0))", None),
        ("torch.cuda.amp.GradScaler(  # old\n)", None),
        ("torch.cuda.amp.GradScaler(**options)", None),
        ("net.forward(1)", "net(1)"),
        ("net.forward(\n    1,\n)", "net(\n    1,\n)"),
        ("(net).forward(1)", None),
        ("net . forward(1)", None),
        ("net.load_state_dict(torch.load('a'))", None),
    ],
)
def test_edit_is_made_only_where_it_is_certain(before, after, folder):
    head = "import torch\n\nnet = torch.nn.Linear(4, 1)\n"
    (folder / "a.py").write_text(f"{head}{before}\n")
    found = fix("a.py")
    assert (None if found is None else found.after) == (after and f"{head}{after}\n")


def test_state_is_loaded_onto_the_cpu_only_if_it_is_copied(folder):
    head = "import torch\n\nnet = torch.nn.Linear(4, 1)\nprint(torch.cuda.is_available())\n"
    (folder / "a.py").write_text(f"{head}net.load_state_dict(torch.load('a.pt'), strict=False)\n")
    assert "torch.load('a.pt', map_location=\"cpu\"), strict=False)" in fix("a.py").after
    (folder / "a.py").write_text(f"{head}net.load_state_dict(torch.load('a.pt'), assign=True)\n")
    assert fix("a.py") is None


@pytest.mark.parametrize(
    "data",
    [
        FORWARD.encode(),
        FORWARD.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + FORWARD.encode(),
        b"# coding: latin-1\nx = '\xe4'\n" + FORWARD.encode(),
        "ä = '名'; ".encode() + FORWARD.replace("\n", "\n\f", 1).encode(),
        FORWARD.rstrip("\n").encode(),
    ],
)
def test_bytes_around_a_fix_are_kept(folder, data):
    path = folder / "a.py"
    path.write_bytes(data)
    path.chmod(0o640)
    fix("a.py").write()
    assert path.read_bytes() == data.replace(b".forward(", b"(")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(folder) == ["a.py"]


def test_file_behind_a_link_is_fixed_and_the_link_stays(folder):
    (folder / "real.py").write_text(FORWARD)
    (folder / "a.py").symlink_to("real.py")
    fix("a.py").write()
    assert (folder / "a.py").is_symlink()
    assert (folder / "real.py").read_text() == FIXED


def test_notebook_and_suppressed_finding_are_not_fixed(folder):
    (folder / "a.ipynb").write_text(notebook(FORWARD))
    assert fix("a.ipynb") is None
    comment = "  # surestep: ignore[SS209] a reason"
    (folder / "a.py").write_text(FORWARD.replace("ones(4))", f"ones(4)){comment}"))
    assert fix("a.py") is None


def test_rule_that_is_not_selected_fixes_nothing(folder):
    (folder / "a.py").write_text(FORWARD)
    assert fix("a.py", ("SS101",)) is None


def test_changed_file_is_left_alone(folder):
    path = folder / "a.py"
    path.write_text(FORWARD)
    (report,) = check_files([(Path("a.py"), CODES)], ResultCache(None))
    fixed = fix_file(report, CODES)
    path.write_text("x = 1\n")
    for write in (fixed.write, lambda: fix_file(report, CODES)):
        with pytest.raises(FixError, match=r"a.py changed while it was being checked"):
            write()
    path.unlink()
    with pytest.raises(FixError, match=r"^a.py could not be written"):
        fixed.write()
    assert os.listdir(folder) == []


def test_read_only_file_is_left_alone(folder):
    path = folder / "a.py"
    path.write_text(FORWARD)
    path.chmod(0o444)
    with pytest.raises(FixError, match=r"^a.py is read-only and was not fixed.$"):
        fix("a.py").write()
    assert path.read_text() == FORWARD


def test_full_disk_leaves_the_file_as_it_was(folder, monkeypatch):
    def fail(self, data):
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    (folder / "a.py").write_text(FORWARD)
    fixed = fix("a.py")
    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(FixError, match="is as it was: No space left on device"):
        fixed.write()
    assert (folder / "a.py").read_text() == FORWARD
    assert os.listdir(folder) == ["a.py"]


def test_overlapping_edits_are_made_one_after_the_other():
    file = parse_source(Path("a.py"), BAD.encode())
    (first, *_) = check_file(file, RULES, Project())
    edits = [(Edit(0, 4, "a"),), (Edit(2, 6, "b"),), (Edit(4, 5, "c"), Edit(0, 4, "a"))]
    findings = [replace(first, edits=chosen) for chosen in edits]
    assert choose_edits(findings) == ([Edit(0, 4, "a"), Edit(4, 5, "c")], 2)
    assert apply_edits("0123456789", [Edit(0, 4, "a"), Edit(4, 5, "c")]) == "ac56789"


def test_edit_that_breaks_a_file_is_a_bug_and_nothing_is_written(folder, monkeypatch):
    (folder / "a.py").write_text(FORWARD)
    monkeypatch.setattr(module, "apply_edits", lambda text, edits: "x = (")
    with pytest.raises(FixError, match="bug of surestep"):
        fix("a.py")
    assert (folder / "a.py").read_text() == FORWARD


def test_diff_is_one_that_git_applies(folder):
    import subprocess

    data = FORWARD.replace("\n", "\r\n").rstrip().encode()
    (folder / "a.py").write_bytes(data)
    fixed = fix("a.py")
    subprocess.run(
        ["git", "apply", "-p0", "-"], input=fixed.diff().encode(), check=True, cwd=folder
    )
    assert (folder / "a.py").read_bytes() == data.replace(b".forward(", b"(")
