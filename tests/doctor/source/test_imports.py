"""What a script imports is executed when it is used, and only then."""

import pytest

from surestep.doctor.source import interpreter
from surestep.doctor.source.files import Project, read_source
from surestep.doctor.source.interpreter import follow


@pytest.fixture
def follow_files(tmp_path):
    """Return a function that writes files, follows the first, and returns the paths it calls."""

    def run(**texts):
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        project = Project()
        program = follow(read_source(tmp_path / f"{next(iter(texts))}.py"), project)
        calls = [e.call.path for trace in program.traces for e in trace.events if e.call]
        used = {path.rpartition("/")[2] for path, digest in project.used.items() if digest}
        return calls, used

    return run


def test_module_of_a_name_that_is_not_used_is_not_read(follow_files):
    _, used = follow_files(
        main="from helpers import run, stop\nimport other\nrun()\n",
        helpers="from unused import value\ndef run(): pass\n",
        other="import torch\n",
        unused="value = 1\n",
    )
    assert used == {"helpers.py"}


def test_function_is_followed_through_modules_that_import_each_other(follow_files):
    calls, _ = follow_files(
        main="from first import start\nstart()\n",
        first="from second import finish\ndef start(): finish()\ndef last(): outside.call()\n",
        second="from first import last\ndef finish(): last()\n",
    )
    assert calls == [".call"]


def test_name_that_imports_itself_in_a_circle_is_not_claimed_to_be_anything(follow_files):
    calls, _ = follow_files(
        main="from first import name\nname()\n",
        first="from second import name\n",
        second="from first import name\n",
    )
    assert calls == ["()"]


def test_branches_that_import_the_same_name_give_one_value(follow_files):
    calls, _ = follow_files(
        main=(
            "import sys\nfrom helpers import run\n"
            "if sys.argv:\n    run()\nelse:\n    flag = run\nrun()\n"
        ),
        helpers="import torch\ndef run(): torch.rand(1)\n",
    )
    assert calls == ["torch.rand"] * 2


def test_name_of_two_modules_is_either(follow_files):
    calls, _ = follow_files(
        main="try: from fast import run\nexcept ImportError: from slow import run\nrun()\n",
        fast="import torch\ndef run(): torch.rand(1)\n",
        slow="import torch\ndef run(): torch.ones(1)\n",
    )
    assert sorted(calls) == ["torch.ones", "torch.rand"]


def test_functions_of_other_files_are_followed_up_to_a_limit(follow_files, monkeypatch):
    monkeypatch.setattr(interpreter, "MAX_STATEMENTS_ELSEWHERE", 5)
    calls, _ = follow_files(
        main="from helpers import run\ndef own(): len(run)\nrun(); run(); own()\n",
        helpers="import torch\ndef run():\n" + "    torch.rand(1)\n" * 6,
    )
    assert calls == ["torch.rand"] * 6 + ["run", "len"]


def test_module_of_a_folder_without_init_is_followed(follow_files):
    calls, _ = follow_files(
        main="from parts import steps\nimport torch\nsteps.run(torch)\n",
        parts__steps="import torch\nfrom . import more\ndef run(_): more.draw()\n",
        parts__more="import torch\ndef draw(): torch.rand(1)\n",
    )
    assert calls == ["torch.rand"]
