import json
import subprocess
import sys
from pathlib import Path

import pytest

from surestep.doctor import check_files as module
from surestep.doctor.cache import ResultCache
from surestep.doctor.check_files import check_files
from surestep.doctor.source.files import LARGEST
from tests.doctor.scripts import BAD, GOOD, notebook

CODES = ("SS101",)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*names, cache=None):
    return check_files([(Path(name), CODES) for name in names], ResultCache(cache))


def found(*names, cache=None):
    return [[finding.rule for finding in report.findings] for report in check(*names, cache=cache)]


def test_each_file_has_a_report_in_order(folder):
    (folder / "a.py").write_text(BAD)
    (folder / "b.py").write_text(GOOD)
    (folder / "c.ipynb").write_text(notebook(BAD))
    (folder / "empty.py").touch()
    assert found("b.py", "a.py", "c.ipynb", "empty.py") == [[], ["SS101"], ["SS101"], []]


def test_cell_that_is_not_python_does_not_hide_the_others(folder):
    (folder / "a.ipynb").write_text(notebook("files = !ls\nif x", "print(", BAD))
    ((finding,),) = [report.findings for report in check("a.ipynb")]
    assert (finding.rule, finding.file) == ("SS101", "a.ipynb:cell 4")


def test_cell_that_is_not_python_is_reported(folder):
    texts = notebook("%%bash\nls |", "files = !ls", BAD.replace(":", ""), BAD)
    (folder / "a.ipynb").write_text(texts)
    (report,) = check("a.ipynb")
    assert [finding.file for finding in report.findings] == ["a.ipynb:cell 5"]
    (note,) = report.notes
    assert note.startswith("a.ipynb:cell 4: not checked: expected ':' in line ")


def test_file_that_is_nested_too_deeply_is_reported(folder):
    (folder / "a.py").write_text(f"import torch\nx = {'-' * 20_000}1\n")
    (report,) = check("a.py")
    assert "a.py cannot be parsed: " in report.problem
    assert not report.problem.endswith(": .")


def test_finding_in_a_notebook_has_the_cell_and_the_source(folder):
    (folder / "a.ipynb").write_text(notebook("%pip install torch", BAD))
    ((finding,),) = [report.findings for report in check("a.ipynb")]
    assert (finding.file, finding.line, finding.column) == ("a.ipynb:cell 3", 8, 5)
    assert finding.source == "    optimizer.step()"


@pytest.mark.parametrize("data", [b"x = (", b"\xff\xfe", b"#" * (LARGEST + 1), b"(" * 9999])
def test_unreadable_file_is_a_problem_and_the_next_one_is_checked(folder, data):
    (folder / "a.py").write_bytes(data)
    (folder / "b.py").write_text(BAD)
    unreadable, readable = check("a.py", "b.py")
    assert unreadable.problem.startswith("a.py")
    assert [finding.rule for finding in readable.findings] == ["SS101"]


@pytest.mark.parametrize(
    "expression", ["+".join(["x"] * 600), "(" * 80 + "x" + ")" * 80, "f(" * 90 + ")" * 90]
)
def test_deeply_nested_file_is_checked(folder, expression):
    (folder / "a.py").write_text(f"{BAD}y = {expression}\n")
    (report,) = check("a.py")
    assert [finding.rule for finding in report.findings] == ["SS101"]
    assert report.notes == []


def test_rule_that_fails_is_noted_and_the_others_go_ahead(folder, monkeypatch):
    def fail(program):
        raise ValueError("boo")

    from dataclasses import replace
    from types import ModuleType

    (rule,) = [rule for rule in module.load_rules() if rule.code == "SS101"]
    broken = ModuleType("broken")
    broken.check = fail
    rules = (replace(rule, code="SS100", module=broken), rule)
    monkeypatch.setattr(module, "load_rules", lambda: rules)
    (folder / "a.py").write_text(BAD)
    (report,) = check_files([(Path("a.py"), ("SS100", "SS101"))], ResultCache(folder / "cache"))
    assert [finding.rule for finding in report.findings] == ["SS101"]
    (note,) = report.notes
    assert note.startswith("a.py: SS100 failed: ValueError: boo (test_check_files.py:")
    assert note.endswith("This is a bug of surestep: please report it.")
    assert not (folder / "cache").exists()


def test_follower_that_fails_is_noted(folder, monkeypatch):
    def fail(*_):
        raise KeyError("boo")

    monkeypatch.setattr(module, "check_file", fail)
    (folder / "a.py").write_text(BAD)
    (folder / "b.py").write_text("x = (\n")
    first, second = check("a.py", "b.py")
    assert "following it failed: KeyError: 'boo'" in first.notes[0]
    assert second.problem


@pytest.fixture
def checked(monkeypatch):
    """The paths that are checked, not read from the cache."""
    names = []
    original = module.check_chunk

    def check(files):
        names.extend(str(path) for path, _ in files)
        return original(files)

    monkeypatch.setattr(module, "check_chunk", check)
    return names


def test_unchanged_file_is_not_checked_again(folder, checked):
    (folder / "a.py").write_text(BAD)
    first = check("a.py", cache=folder / "cache")
    assert checked == ["a.py"]
    second = check("a.py", cache=folder / "cache")
    assert checked == ["a.py"]
    assert second[0].findings == first[0].findings


def test_changed_file_is_checked_again(folder, checked):
    (folder / "a.py").write_text(BAD)
    assert found("a.py", cache=folder / "cache") == [["SS101"]]
    (folder / "a.py").write_text(GOOD)
    assert found("a.py", cache=folder / "cache") == [[]]
    assert checked == ["a.py", "a.py"]


def test_file_is_checked_again_if_the_rules_change(folder, checked, monkeypatch):
    (folder / "a.py").write_text(BAD)
    assert found("a.py", cache=folder / "cache") == [["SS101"]]
    monkeypatch.setattr("surestep.doctor.cache._version_of_rules", lambda: "another")
    assert found("a.py", cache=folder / "cache") == [["SS101"]]
    assert checked == ["a.py", "a.py"]


def test_file_is_checked_again_if_what_it_imports_changes(folder, checked):
    step = "from helper import advance\n" + BAD.replace("optimizer.step()", "advance(optimizer)")
    (folder / "a.py").write_text(step)
    cache = folder / "cache"
    texts = [
        (None, [[]]),
        ("def advance(optimizer):\n    optimizer.step()\n    optimizer.zero_grad()\n", [[]]),
        ("def advance(optimizer):\n    optimizer.step()\n", [[]]),
        ("def advance(optimizer): (\n", [[]]),
    ]
    for count, (text, expected) in enumerate(texts, 1):
        if text is not None:
            (folder / "helper.py").write_text(text)
        assert found("a.py", cache=cache) == expected
        assert len(checked) == count
    assert found("a.py", cache=cache) == [[]]


def test_other_rules_have_their_own_results(folder):
    (folder / "a.py").write_text(BAD)
    cache = ResultCache(folder / "cache")
    assert [report.findings for report in check_files([(Path("a.py"), ())], cache)] == [[]]
    assert found("a.py", cache=folder / "cache") == [["SS101"]]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b"0" * 64 + b"\n{}"])
def test_broken_cache_is_ignored(folder, checked, damage):
    (folder / "a.py").write_text(BAD)
    check("a.py", cache=folder / "cache")
    (entry,) = (folder / "cache").iterdir()
    entry.write_bytes(damage)
    assert found("a.py", cache=folder / "cache") == [["SS101"]]
    assert len(checked) == 2


def test_truncated_entry_is_ignored(folder, checked):
    (folder / "a.py").write_text(BAD)
    check("a.py", cache=folder / "cache")
    (entry,) = (folder / "cache").iterdir()
    entry.write_bytes(entry.read_bytes()[:-5])
    assert found("a.py", cache=folder / "cache") == [["SS101"]]


def test_cache_that_cannot_be_written_is_ignored(folder):
    (folder / "cache").write_text("a file, not a folder")
    (folder / "a.py").write_text(BAD)
    assert found("a.py", cache=folder / "cache") == [["SS101"]]


@pytest.mark.slow("starts several processes")
def test_several_processes_find_the_same(folder, monkeypatch):
    names = [f"{number}.py" for number in range(60)]
    for number, name in enumerate(names):
        (folder / name).write_text(GOOD if number % 3 else BAD)
    alone = [module.check_chunk([(Path(name), CODES)])[0] for name in names]
    monkeypatch.setattr(module, "_count_cores", lambda: 2)
    assert check(*names) == alone


INTERRUPT = """
import os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from surestep.cli.main import main
from surestep.doctor import check_files

submit, count = ProcessPoolExecutor.submit, 0

def submit_and_interrupt(self, *args):
    global count
    future = submit(self, *args)
    count += 1
    if count == 2:  # both processes are started
        os.killpg(0, signal.SIGINT)  # as a terminal does
    return future

if __name__ == "__main__":
    ProcessPoolExecutor.submit = submit_and_interrupt
    check_files._count_cores = lambda: 2
    sys.exit(main(["check", "scripts", "--no-cache"]))
"""


@pytest.mark.slow("starts several processes")
def test_interrupt_ends_all_processes_with_130_and_no_traceback(folder):
    (folder / "scripts").mkdir()
    for number in range(200):
        (folder / f"scripts/{number}.py").write_text(BAD)
    (folder / "interrupt.py").write_text(INTERRUPT)
    words = [sys.executable, "interrupt.py"]
    # It returns when no process has the pipes open.
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


SLOW = INTERRUPT.replace("import os, signal, sys", "import os, signal, sys, time").replace(
    'if __name__ == "__main__":',
    """
def take_a_minute(files):
    time.sleep(60)

if __name__ == "__main__":
    check_files.check_chunk = take_a_minute""",
)


@pytest.mark.slow("starts several processes")
def test_interrupt_does_not_wait_for_the_files_that_are_being_checked(folder):
    (folder / "scripts").mkdir()
    for number in range(200):
        (folder / f"scripts/{number}.py").write_text(BAD)
    (folder / "interrupt.py").write_text(SLOW)
    words = [sys.executable, "interrupt.py"]
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=40)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


LOADED = """
import json, sys
from surestep.cli.main import main

code = main(["check", "a.py", "--no-cache"])
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_command_loads_no_slow_package(folder):
    (folder / "a.py").write_text(BAD)
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.stderr == ""
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code == 1
    assert {"torch", "numpy", "pydantic", "typeguard"} & set(loaded) == set()


ENGINE = """\
def train(model, criterion, optimizer, loader):
    for x, y in loader:
        loss = criterion(model(x).softmax(-1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
MAIN = """\
import torch
from engine import train

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(data, shuffle=True)
for epoch in range(3):
    train(model, torch.nn.CrossEntropyLoss(), optimizer, loader)
"""


@pytest.fixture
def project(folder):
    """A loss that is wrong in one file for what another one gives it."""
    (folder / "engine.py").write_text(ENGINE)
    (folder / "main.py").write_text(MAIN)


def check_project(*names, codes=("SS501",), cache=None):
    reports = check_files([(Path(name), codes) for name in names], ResultCache(cache))
    return [[(f.file, f.line) for f in report.findings] for report in reports]


@pytest.mark.usefixtures("project")
def test_finding_that_another_file_shows_is_in_the_report_of_its_file(folder):
    assert check_project("engine.py") == [[]]
    assert check_project("engine.py", "main.py") == [[("engine.py", 3)], []]
    assert check_project("main.py", "./engine.py") == [[], [("engine.py", 3)]]


@pytest.mark.usefixtures("project")
def test_finding_in_a_file_that_is_not_checked_is_not_reported():
    assert check_project("main.py") == [[]]


@pytest.mark.usefixtures("project")
def test_finding_that_several_files_show_is_reported_once(folder):
    (folder / "other.py").write_text(MAIN)
    assert check_project("main.py", "engine.py", "other.py") == [[], [("engine.py", 3)], []]


@pytest.mark.usefixtures("project")
def test_rules_of_the_file_with_the_mistake_count(folder):
    files = [(Path("main.py"), ("SS501",)), (Path("engine.py"), ())]
    assert [report.findings for report in check_files(files, ResultCache(None))] == [[], []]


@pytest.mark.usefixtures("project")
def test_comment_suppresses_a_finding_that_another_file_shows(folder):
    line = "        loss = criterion(model(x).softmax(-1), y)"
    text = ENGINE.replace(line, f"{line}  # surestep: ignore[SS501] reason")
    (folder / "engine.py").write_text(text)
    assert check_project("main.py", "engine.py") == [[], []]


@pytest.mark.usefixtures("project")
def test_finding_that_another_file_shows_is_cached(folder, checked):
    first = check_project("main.py", "engine.py", cache=folder / "cache")
    assert first == [[], [("engine.py", 3)]]
    assert check_project("main.py", "engine.py", cache=folder / "cache") == first
    assert len(checked) == 2


@pytest.mark.usefixtures("project")
def test_script_that_only_imports_what_trains_is_followed(folder):
    (folder / "parts.py").write_text(
        "import torch\n\ndef build():\n    model = torch.nn.Linear(4, 3)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    return model, torch.nn.CrossEntropyLoss(), optimizer\n"
    )
    (folder / "main.py").write_text(
        "from engine import train\nfrom parts import build\n\n"
        "if __name__ == '__main__':\n    model, criterion, optimizer = build()\n"
        "    train(model, criterion, optimizer, open_data())\n"
    )
    assert check_project("main.py", "engine.py", "parts.py") == [[], [("engine.py", 3)], []]


EVALUATE = """\
import torch

def evaluate(net, batches):
    net.eval()
    with torch.no_grad():
        return sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
"""
TRAIN = """\
import torch
from evaluating import evaluate

net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters())
batches = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(9)]
net.train()
for x, y in batches:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    print(evaluate(net, batches))
"""


def test_eval_mode_that_another_file_leaves_on_is_reported_there(folder):
    (folder / "evaluating.py").write_text(EVALUATE)
    (folder / "training.py").write_text(TRAIN)
    names = ("evaluating.py", "training.py")
    assert check_project(*names, codes=("SS401",)) == [[("evaluating.py", 4)], []]
    (folder / "training.py").write_text(TRAIN.replace("batches:", "batches:\n    net.train()"))
    assert check_project(*names, codes=("SS401",)) == [[], []]
