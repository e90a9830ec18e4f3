"""What import-linter cannot say about the source."""

import ast
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ALONE

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "surestep"
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
EXCEPTIONS = tomllib.loads((HERE / "size_exceptions.toml").read_text(encoding="utf-8"))
TORCH_FILES_ARE_READ_IN = "record/pretrained.py"
TORCH_FILES_ARE_WRITTEN_IN = "record/export.py"
FILE_LIMIT, FUNCTION_LIMIT = 500, 60
AT_IMPORT = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.If),
)


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


def sizes() -> dict[str, int]:
    """Every file by its path, every function by `path:name`, over its limit."""
    found = {}
    for path, tree in TREES.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LIMIT:
            found[name_of(path)] = lines
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and lines_of(node) > FUNCTION_LIMIT:
                found[f"{name_of(path)}:{node.name}"] = lines_of(node)
    return found


def test_files_that_run_alone_are_there():
    assert [each for each in ALONE if not (HERE.parent / each).exists()] == []


def test_the_source_is_found():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_only_the_step_moves_parameters(path):
    if name_of(path).startswith(("engine/step/", "engine/parallel/")):
        return
    if name_of(path) == "engine/evaluate/input_gradients.py":  # of inputs: nothing is updated
        return
    # A recipe's own step calls the verb turn.backward, which is the step's.
    moving = re.compile(r"(?<!^turn)(^|\.)backward$|(^|\.|_)optim(izer)?\.step$|autograd\.grad$")
    assert [call for call in calls(TREES[path]) if moving.search(call)] == []


def test_a_backward_or_step_elsewhere_would_be_seen():
    moving = "loss.backward(); torch.autograd.backward(x); self.optimizer.step(); optim.step()"
    assert calls(ast.parse(moving)) == [
        *("loss.backward", "torch.autograd.backward"),
        *("self.optimizer.step", "optim.step"),
    ]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_runs_at_import(path):
    running = [
        node
        for node in TREES[path].body
        if not is_docstring(node)
        and (
            not isinstance(node, AT_IMPORT)
            or (isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test))
        )
    ]
    if path.name == "__main__.py":
        return
    assert [ast.unparse(node) for node in running] == []


PICKLES = {
    *("pickle", "cPickle", "_pickle", "pickletools", "dill", "cloudpickle", "joblib", "shelve"),
    *("marshal", "jsonpickle", "copyreg", "dbm", "yaml", "torch.package", "torch.hub"),
}
RUNS = {"eval", "exec", "compile", "__import__", "execfile", "runpy", "code"}
RUNS_A_RECIPE = "recipes/load.py"  # the one file that runs what a user wrote: their recipe
# Each reads or writes pickles, or does so where it is told to; safetensors.torch.load does not.
READS = re.compile(
    r"(^|(?<!safetensors)\.)(torch|np|numpy|jit|serialization)\.(load|save)$"
    r"|(^|\.)(load_module|exec_module|read_pickle|to_pickle|find_class|Unpickler)$"
    r"|(^|\.)(load_state_dict_from_url|add_safe_globals)$"
)


def code_that_may_run(tree: ast.AST) -> set[str]:
    """Return the imports and calls by which bytes or text that were read could become code."""
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
            said = {word.arg: ast.unparse(word.value) for word in node.keywords}
            allowed = said.get("allow_pickle", "False") != "False"
            if READS.search(called) or inner in RUNS or allowed:
                found.add(called)
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_that_is_read_is_unpickled_or_run(path):
    named = {
        TORCH_FILES_ARE_READ_IN: {"torch.load"},
        TORCH_FILES_ARE_WRITTEN_IN: {"torch.save"},
        RUNS_A_RECIPE: {"spec.loader.exec_module"},
    }
    assert code_that_may_run(TREES[path]) == named.get(name_of(path), set())


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
def test_each_way_to_unpickle_or_run_would_be_seen(line):
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
def test_what_runs_nothing_is_left_alone(line):
    assert not code_that_may_run(ast.parse(line))


def test_torch_files_are_read_without_the_code_in_them():
    """Weights that a user gives may be a file of torch.save: its tensors are read, in one place."""
    tree = TREES[SOURCE / TORCH_FILES_ARE_READ_IN]
    loads = [ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.Call)]
    (load,) = [each for each in loads if each.startswith("torch.load(")]
    assert "weights_only=True" in load


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_todo_without_its_reason(path):
    bare = re.compile(r"#\s*(TODO|FIXME|XXX)(?!\(.+\):|: .+ (because|until|when|blocked) )")
    assert [line for line in path.read_text().splitlines() if bare.search(line)] == []


def test_sizes_stay_in_their_limits_or_say_why():
    over = sizes()
    assert sorted(over) == sorted(EXCEPTIONS)
    for name, lines in over.items():
        assert lines <= EXCEPTIONS[name]["lines"], f"{name} has {lines} lines: it may only shrink"
        assert EXCEPTIONS[name]["reason"]


IMPORT_EACH = textwrap.dedent(
    """
    import gc, importlib, logging, os, signal, sys, warnings
    import numpy, pydantic, rich, safetensors.torch, torch, torch.utils.data, tqdm.auto
    try:
        import tyro, sklearn.datasets
    except ImportError:
        pass

    sys.pycache_prefix = sys.argv[1]  # so that each module is compiled under -W error, once
    sys.dont_write_bytecode = False  # what warns is an error there, of which nothing is kept
    gc.freeze()  # else each child walks, and so copies, all that is imported
    signals = [getattr(signal, f"SIG{each}") for each in "INT TERM USR1 HUP CHLD PIPE".split()]

    def world():
        return (
            dict(os.environ), os.getcwd(), [signal.getsignal(each) for each in signals],
            list(logging.root.handlers), logging.getLogger("surestep").handlers,
            torch.initial_seed(), torch.get_num_threads(), torch.get_default_dtype(),
            torch.cuda.is_initialized(), set(os.listdir(".")),
        )

    for name in sys.argv[2:]:
        if not name.startswith("surestep.base") and name != "surestep":
            import surestep.config.config  # its classes take 0.2 s to build, and it was tried alone
        child = os.fork()
        if not child:
            before = world()
            warnings.simplefilter("error")
            try:
                importlib.import_module(name)
                assert world() == before, "importing it changes the process"
            except BaseException as error:
                print(f"{name}: {error!r}", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
)


def test_each_module_imports_alone_without_a_warning_and_changes_nothing(tmp_path):
    modules = [module_of(path) for path in FILES if path.name != "__main__.py"]
    (tmp_path / "pycache").mkdir()  # before the first module is looked at
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, str(tmp_path / "pycache"), *modules],
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""


def test_each_module_of_the_source_has_a_docstring():
    assert [name_of(path) for path, tree in TREES.items() if not ast.get_docstring(tree)] == []
