"""Rules for the source that import-linter cannot express."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path
from textwrap import indent
from types import SimpleNamespace

import pytest

from tests.conftest import ALONE, pytest_collection_modifyitems
from tests.tiers import SLOW

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "surestep"
FILES = sorted(SOURCE.rglob("*.py"))
TORCH_FILES_ARE_READ_IN = "record/pretrained.py"
TRAINS_BEFOREHAND = "recipes/finetune.py"  # in place of weights that someone has published
IS_PRINTED = "eject/templates/program.py"  # the code of ejected scripts, which surestep never runs
TORCH_FILES_ARE_WRITTEN_IN = "record/export.py"
FILE_LIMIT, FUNCTION_LIMIT, RULE_LIMIT = 500, 60, 150
NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
)
HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef)
AT_IMPORT = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.If),
)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def calls(tree: ast.AST) -> list[str]:
    return [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def lines_of(function: ast.FunctionDef) -> int:
    body = function.body[1:] if is_docstring(function.body[0]) else function.body
    if not body:
        return 0
    signature = function.body[0].lineno - function.lineno
    return signature + function.end_lineno - body[0].lineno + 1


def line_numbers(node: ast.AST) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))


def code_lines(text: str) -> int:
    """Return the number of lines with code: not of docstrings, comments and blank lines."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = [(token.start[0], token.end[0]) for token in tokens if token.type not in NO_CODE]
    lines = {line for first, last in spans for line in range(first, last + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, HAS_DOCSTRING) and ast.get_docstring(node) is not None:
            lines -= line_numbers(node.body[0])
    return len(lines)


def rule_sizes() -> dict[str, int]:
    """Every rule by its path, a module or a folder, over its limit of lines with code."""
    found = {}
    for rule in sorted((SOURCE / "doctor" / "rules").glob("ss*")):
        texts = [path.read_text(encoding="utf-8") for path in FILES if rule in (path, path.parent)]
        lines = sum(map(code_lines, texts))
        if lines > RULE_LIMIT:
            found[name_of(rule)] = lines
    return found


def sizes() -> dict[str, int]:
    """Every file by its path, every function by `path:name`, every rule, over its limit."""
    found = rule_sizes()
    for path in FILES:
        tree = tree_of(path)
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LIMIT:
            found[name_of(path)] = lines
        if name_of(path) == IS_PRINTED:  # whose functions have the lines of all Plans
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and lines_of(node) > FUNCTION_LIMIT:
                found[f"{name_of(path)}:{node.name}"] = lines_of(node)
    return found


def offenders(check):
    """Return what `check(path)` reports, for the files where it reports anything."""
    reports = {name_of(path): check(path) for path in FILES}
    return {name: report for name, report in reports.items() if report}


def test_files_that_run_alone_exist():
    assert [name for name in ALONE if not (HERE.parent / name).exists()] == []


def test_slow_tests_exist():
    for entry in SLOW:
        file, _, test = entry.partition("::")
        path = HERE.parent / file
        assert path.exists(), entry
        definition = f"def {test.partition('[')[0]}"
        assert not test or definition in path.read_text(encoding="utf-8"), entry


def test_slow_mark_that_the_text_of_a_file_does_not_have_is_an_error():
    item = SimpleNamespace(nodeid="tests/tiny.py::test_a", get_closest_marker=lambda name: name)
    with pytest.raises(pytest.UsageError, match=r"leaves out the slow tests of tests/tiny\.py"):
        pytest_collection_modifyitems([item])


def test_source_files_are_found():
    assert len(FILES) > 40


# A recipe's manual step calls manual_step.backward, which is a method of the step.
UPDATES = re.compile(
    r"(?<!^manual_step)(^|\.)backward$|(^|\.|_)optim(izer)?\.step$|autograd\.grad$"
)
MAY_UPDATE = ("engine/step/", "engine/parallel/")
INPUT_GRADIENTS = "engine/evaluate/input_gradients.py"  # gradients of inputs: no update


def updating_calls(tree):
    return [call for call in calls(tree) if UPDATES.search(call)]


def test_only_the_step_and_the_strategies_update_parameters():
    found = offenders(lambda path: updating_calls(tree_of(path)))
    allowed = {name for name in found if name.startswith(MAY_UPDATE)}
    allowed |= {INPUT_GRADIENTS, IS_PRINTED, TRAINS_BEFOREHAND}
    assert {name: calls for name, calls in found.items() if name not in allowed} == {}


def test_backward_or_step_call_elsewhere_is_reported():
    text = "loss.backward(); torch.autograd.backward(x); self.optimizer.step(); optim.step()"
    assert updating_calls(ast.parse(text)) == calls(ast.parse(text))
    assert updating_calls(ast.parse("manual_step.backward(loss)")) == []


def statements_that_run(tree):
    """Return the statements of a module that do more at import than define something."""
    return [
        ast.unparse(node)
        for node in tree.body
        if not is_docstring(node)
        and (
            not isinstance(node, AT_IMPORT)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test))
        )
    ]


def test_no_module_runs_statements_at_import():
    found = offenders(lambda path: statements_that_run(tree_of(path)))
    assert {name: lines for name, lines in found.items() if Path(name).name != "__main__.py"} == {}


@pytest.mark.parametrize("text", ["print(1)", "for x in y: pass", "if x: y = 1", "with x: pass"])
def test_statement_that_runs_at_import_is_reported(text):
    assert statements_that_run(ast.parse(text))


PICKLES = {
    *("pickle", "cPickle", "_pickle", "pickletools", "dill", "cloudpickle", "joblib", "shelve"),
    *("marshal", "jsonpickle", "copyreg", "dbm", "yaml", "torch.package", "torch.hub"),
}
RUNS = {"eval", "exec", "compile", "__import__", "execfile", "runpy", "code"}
RUNS_ITS_SCRIPT = "laws/checks/plain_torch.py"  # that eject prints of a recipe
RUNS_A_RECIPE = "recipes/load.py"  # the one file that runs what a user wrote: their recipe
RUNS_A_SCRIPT = "cli/watched.py"
RUNS_WHAT_IT_PRINTED = "laws/checks/plain_torch.py"
NAMES_AN_ERROR_OF_PICKLE = "engine/data/workers.py"
# Each reads or writes pickles, always or on request; safetensors.torch.load does not.
READS = re.compile(
    r"(^|(?<!safetensors)\.)(torch|np|numpy|jit|serialization)\.(load|save)$"
    r"|(^|\.)(load_module|exec_module|read_pickle|to_pickle|find_class|Unpickler)$"
    r"|(^|\.)(load_state_dict_from_url|add_safe_globals)$"
)


def code_that_may_run(tree: ast.AST) -> set[str]:
    """Return the imports and calls that could turn bytes or text from a file into code."""
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{each.name}" for each in node.names)]
        found |= {name for name in names if READS.search(name)}
        found |= {
            name
            for name in names
            if {name, name.split(".")[0], name.removeprefix("builtins.")} & (PICKLES | RUNS)
        }
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            inner = called.removeprefix("builtins.")
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            allows_pickle = keywords.get("allow_pickle", "False") != "False"
            if READS.search(called) or inner in RUNS or allows_pickle:
                found.add(called)
    return found


def test_only_named_calls_unpickle_data_or_run_code():
    assert offenders(lambda path: code_that_may_run(tree_of(path))) == {
        TORCH_FILES_ARE_READ_IN: {"torch.load"},
        TORCH_FILES_ARE_WRITTEN_IN: {"torch.save"},
        IS_PRINTED: {"torch.load", "torch.save"},
        RUNS_A_RECIPE: {"spec.loader.exec_module"},
        RUNS_ITS_SCRIPT: {"spec.loader.exec_module"},
        RUNS_A_SCRIPT: {"exec", "runpy"},
        RUNS_WHAT_IT_PRINTED: {"spec.loader.exec_module"},
        NAMES_AN_ERROR_OF_PICKLE: {"pickle", "pickle.PicklingError"},
    }


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from pickle import loads", "import shelve as s", "import marshal"),
        *("import yaml", "from torch import load", "from numpy import load", "import runpy"),
        *("torch.load(p)", "np.load(p)", "numpy.load(p, allow_pickle=True)", "torch.jit.load(p)"),
        *("np.savez(p, allow_pickle=True)", "eval(x)", "exec(x)", "builtins.eval(x)"),
        *(
            "__import__(x)",
            "pd.read_pickle(p)",
            "torch.serialization.load(p)",
            "compile(x, '', 'eval')",
        ),
        *("torch.hub.load_state_dict_from_url(u)", "import torch.hub", "from builtins import exec"),
    ],
)
def test_each_call_that_unpickles_or_runs_code_is_reported(line):
    assert code_that_may_run(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "torch.compile(model)",
        "from safetensors.torch import load",
        "re.compile(x)",
        "json.loads(x)",
        "model.eval()",
        "load(data)",
    ],
)
def test_harmless_calls_are_not_reported(line):
    assert not code_that_may_run(ast.parse(line))


def is_check(path: Path) -> bool:
    """Return whether a file checks what the user gives before the first step."""
    files = ("trainer/review/data_findings.py", "trainer/run_identity.py")
    return name_of(path).startswith("engine/checks/") or name_of(path) in files


def is_note(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "not_checked"


def silent_ends(tree: ast.AST) -> list[str]:
    """List where a check is left early, or an error of any type is dropped, without a note.

    A check is a function that returns nothing. What it does not apply to is a condition around it.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.unparse(node.returns or node) == "None":
            returns = [one for one in ast.walk(node) if isinstance(one, ast.Return)]
            found += [
                f"{node.name}: {ast.unparse(one)}"
                for one in returns
                if one is not node.body[-1] and not is_note(one.value or one)
            ]
        if isinstance(node, ast.ExceptHandler) and ast.unparse(node.type or node) == "Exception":
            ends = (isinstance(one, ast.Raise) or is_note(one) for one in ast.walk(node))
            found += [] if any(ends) else [ast.unparse(node).splitlines()[0]]
        if isinstance(node, ast.Call) and ast.unparse(node) == "suppress(Exception)":
            found.append(ast.unparse(node))
    return found


# Conditions of checks that have no `else`, each with the reason why there is nothing to check then.
CONDITIONS = {
    "gap is None and pads": "no padding can be collated again, or there is an error already",
    "gap is not None and _find_gap(terms, [make_given()])[0] is None": "another error follows",
    "class_dim is not None and head.loss.divides": "a sum, or no classes: any value is right",
    "self.loader.transform is not None": "nothing transforms the batch",
    "self.judged_by is not None": "nothing is monitored",
    "loader.source.collates": "torch's own collate function pads nothing",
    "loss.kind == 'model' and (not counts_batch)": "the model does not shift, or the user counts",
    "not isinstance(opened, WholeSetMetric)": "it is computed on the whole set",
    "not (is_exact or isinstance(metric, InputMetric))": "it is exact for any batches",
    "isinstance(loss, nn.Module)": "a function has no parameters of its own",
}


def is_call_of_check(node: ast.AST) -> bool:
    name = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
    return name.lstrip("_").startswith(("check_", "report_"))


def conditions_of_checks(tree: ast.AST) -> list[str]:
    """List conditions, with no `else`, that a check depends on."""
    return [
        ast.unparse(node.test)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and not node.orelse
        if any(is_call_of_check(inner) for part in node.body for inner in ast.walk(part))
    ]


def test_condition_of_a_check_has_a_note_or_a_reason():
    found = {
        text for path in FILES if is_check(path) for text in conditions_of_checks(tree_of(path))
    }
    assert found == set(CONDITIONS)
    assert conditions_of_checks(as_check("if x and self.is_alone:\n self._check_parts(y)"))
    with_note = "if x:\n check_parts(y)\nelse:\n not_checked('y', 'x')"
    assert not conditions_of_checks(as_check(with_note))


def test_no_check_is_left_in_silence():
    assert not offenders(lambda path: silent_ends(tree_of(path)) if is_check(path) else [])


def as_check(text: str) -> ast.Module:
    return ast.parse("def check(x) -> None:\n" + indent(f"{text}\ny()\n", " "))


@pytest.mark.parametrize(
    "text",
    [
        "if x:\n return",
        "for x in y:\n return None",
        "try:\n y()\nexcept Exception:\n pass",
        "try:\n y()\nexcept Exception:\n x = 0",
        "with suppress(Exception):\n y()",
    ],
)
def test_check_that_is_left_in_silence_is_reported(text):
    assert silent_ends(as_check(text))


@pytest.mark.parametrize(
    "text",
    [
        "if x:\n return not_checked('y', 'x')",
        "try:\n y()\nexcept Exception as error:\n not_checked('y', str(error))",
        "try:\n y()\nexcept Exception as error:\n raise TaskError from error",
    ],
)
def test_check_that_notes_why_it_is_left_is_not_reported(text):
    assert not silent_ends(as_check(text))


RUN_OBJECTS = {"loop", "_loop", "session", "_session"}
ADDING = {"append", "extend", "insert", "add", "update", "setdefault", "clear"}


def changes_of_runs(tree: ast.AST) -> list[int]:
    """Return the lines that set an attribute of a loop or a session, or add to one."""
    lines = []
    for node in ast.walk(tree):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            targets = [node.func.value] if node.func.attr in ADDING else []
        elif not isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = []
        flat = [one for target in targets for one in getattr(target, "elts", [target])]
        for target in flat:
            while isinstance(target, ast.Subscript):
                target = target.value
            owner = getattr(target, "value", None) if isinstance(target, ast.Attribute) else None
            name = getattr(owner, "id", getattr(owner, "attr", None))
            if name in RUN_OBJECTS:
                lines.append(node.lineno)
    return lines


def test_only_a_loop_and_a_session_change_themselves():
    """What a part of a run needs of it, the part returns or calls a method for."""
    assert [
        f"{name_of(path)}:{line}"
        for path in FILES
        if not name_of(path).startswith("doctor/")
        for line in changes_of_runs(tree_of(path))
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        "loop.stopping = 'done'",
        "session.loop.stopping += 'x'",
        "self._loop.a, b = 1, 2",
        "session.loop.parts.append(part)",
        "self.session.plan = plan",
        "session.loop.handlers[name] = save",
    ],
)
def test_change_of_a_loop_or_a_session_is_reported(line):
    assert changes_of_runs(ast.parse(line)) == [1]


@pytest.mark.parametrize("line", ["self.loop = loop", "loop.stop('x')", "loop = session.loop"])
def test_call_of_a_loop_is_not_reported(line):
    assert changes_of_runs(ast.parse(line)) == []


def test_torch_files_are_read_with_weights_only():
    """A user may pass weights saved by torch.save; one place reads the tensors of such a file."""
    tree = tree_of(SOURCE / TORCH_FILES_ARE_READ_IN)
    loads = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (load,) = [call for call in loads if call.startswith("torch.load(")]
    assert "weights_only=True" in load


BARE_TODO = re.compile(r"#\s*(TODO|FIXME|XXX)(?!\(.+\):|: .+ (because|until|when|blocked) )")


def bare_todos(text):
    return [line for line in text.splitlines() if BARE_TODO.search(line)]


def test_every_todo_has_a_reason():
    assert offenders(lambda path: bare_todos(path.read_text(encoding="utf-8"))) == {}


def test_todo_without_a_reason_is_reported():
    assert bare_todos("x = 1  # TODO: faster")
    assert not bare_todos("x = 1  # TODO: remove it when torch 2.14 is out")


def test_lines_of_code_are_counted_without_docstrings_comments_and_blank_lines():
    text = '"""A page\n\nof two lines."""\n\n# why\nx = [\n    1,  # one\n\n]\n'
    side = 'def check():\n    """A claim."""\n    return """\n\n"""\n'
    assert code_lines(text) == 3
    assert code_lines(text + side) == 3 + 4


def test_files_functions_and_rules_respect_the_size_limits():
    assert sizes() == {}


def import_alone(folder, source, modules):
    """Return what is printed of modules that do not import alone."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "import_alone.py"), str(source), *modules],
        env={**os.environ, **threads, "PYTHONPATH": str(source)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_every_module_imports_alone_without_warnings_or_side_effects(tmp_path):
    modules = [module_of(path) for path in FILES if path.name != "__main__.py"]
    assert import_alone(tmp_path, SOURCE.parent.resolve(), modules) == ""


def test_every_module_has_a_docstring():
    assert [name_of(path) for path in FILES if not ast.get_docstring(tree_of(path))] == []
