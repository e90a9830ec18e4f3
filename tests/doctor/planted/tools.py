"""Other tools that find mistakes in training scripts, run over the same scripts as the doctor."""

from __future__ import annotations

import gc
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.doctor.planted.run import Result, run_all, run_main, write_files

FINDING = re.compile(r"^(?P<file>[^\s:]+\.py):\d+:\d+: (?P<code>[A-Z]+\d+):? (?P<rest>.*)")
NOT_DEFAULT = ("TOR3", "TOR4", "TOR9")  # groups of TorchFix that must be selected
NUMBER = re.compile(r"\b\d+(\.\d+)?(e[+-]?\d+)?\b")


@dataclass(frozen=True)
class Tool:
    """A tool beside the doctor.

    Attributes:
        name: of its package.
        version: that is compared.
        runs: whether it needs a run of the script.
        find: returns what it finds in each script; it gets the scripts, the folder that the
            package is installed in, and the number of processes.
    """

    name: str
    version: str
    runs: bool
    find: Callable[[Sequence[Mapping[str, str]], Path, int], list[Result]]

    @property
    def install(self) -> str:
        """Return the command that installs it, but for the folder."""
        return f"python -m pip install --target DIR/{self.name} {self.name}=={self.version}"


def lint_by_torchfix(
    scripts: Sequence[Mapping[str, str]], package: Path, processes: int
) -> list[Result]:
    """Return what TorchFix prints about scripts, each in a folder that its number names."""
    command = [sys.executable, "-m", "torchfix", "--select=ALL", "-j", str(processes), "."]
    environment = os.environ | {"PYTHONPATH": str(package)}
    with tempfile.TemporaryDirectory() as name:
        for number, files in enumerate(scripts):
            folder = Path(name, str(number))
            folder.mkdir()
            write_files(files, folder)
        done = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True)
    if "Traceback" in done.stderr:
        raise RuntimeError(done.stderr[-1000:])
    return read_lines(done.stdout, len(scripts))


def read_lines(text: str, number: int) -> list[Result]:
    """Return the findings of lines such as `3/train.py:5:1: TOR101 text`, for each script."""
    results = [Result() for _ in range(number)]
    for match in filter(None, map(FINDING.match, text.splitlines())):
        folder, file = Path(match["file"]).parts[-2:]
        is_default = not match["code"].startswith(NOT_DEFAULT)
        finding = {
            "rule": match["code"],
            "severity": "warning" if is_default else "info",
            "at": file,  # a mistake changes the lines of what follows
            "message": match["rest"],
        }
        results[int(folder)].found.append(finding)
    return results


def run_with_torch_audit(
    scripts: Sequence[Mapping[str, str]], package: Path, processes: int
) -> list[Result]:
    sys.path.append(str(package))
    torch_audit = importlib.import_module("torch_audit")

    def run(files: Mapping[str, str], folder: Path) -> Result:
        auditors: list[Any] = []

        def attach(model: Any, optimizer: Any, batch: Any) -> None:
            auditor = torch_audit.autopatch(
                model, optimizer=optimizer, every_n_steps=1, reporters=[]
            )
            auditors.append(auditor)

        error = run_main(files, folder, lambda main: call_at_first_steps(attach, main))
        found = [
            {
                "rule": f.rule_id,
                "severity": "info" if f.severity.value == "INFO" else "warning",
                "at": f"{f.module_path} {f.entity}",
                "message": f.message,
            }
            for f in {
                f.get_fingerprint(): f for a in auditors for f in a.finish().findings
            }.values()
        ]
        return Result(found, error or ("" if auditors else "no model was found"))

    return run_all(scripts, run, processes)


def run_with_torchtest2(
    scripts: Sequence[Mapping[str, str]], package: Path, processes: int
) -> list[Result]:
    sys.path.append(str(package))
    torchtest2 = importlib.import_module("torchtest2")

    def run(files: Mapping[str, str], folder: Path) -> Result:
        reports: list[Any] = []

        def test(model: Any, optimizer: Any, batch: Any) -> None:
            if batch is not None:
                reports.append(torchtest2.check_model(model, batch, optimizer=optimizer))

        error = run_main(files, folder, lambda main: call_at_first_steps(test, main))
        found = [
            {
                "rule": result.name,
                "severity": "warning",
                "at": NUMBER.sub("#", result.message),  # it names parameters, and their values
                "message": result.message,
            }
            for report in reports
            for result in [*report.failures, *report.warnings]
        ]
        return Result(found, error or ("" if reports else "no model was found"))

    return run_all(scripts, run, processes)


def call_at_first_steps(call: Callable[[Any, Any, Any], None], main: Callable[[], object]) -> None:
    """Run a script; at the first step of each optimizer, give its models and their batches.

    The models of an optimizer are the outermost modules with one of its parameters. If there are
    none, they are the modules that were called last, as a user would name those.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    batches: dict[int, tuple[Any, Any]] = {}
    seen: list[Any] = []
    is_calling = False

    def remember(module: Any, args: tuple[Any, ...]) -> None:
        if not is_calling and args:
            batches[id(module)] = module, args

    def give(optimizer: Any, args: object, kwargs: object) -> None:
        nonlocal is_calling
        if is_calling or any(optimizer is one for one in seen):
            return
        seen.append(optimizer)
        is_calling = True
        try:
            for model in find_models(optimizer, [module for module, _ in batches.values()]):
                call(model, optimizer, batches.get(id(model), (model, None))[1])
        finally:
            is_calling = False

    register_module_forward_pre_hook(remember)
    register_optimizer_step_pre_hook(give)
    main()


def find_models(optimizer: Any, called: Sequence[Any]) -> list[Any]:
    from torch import nn

    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    modules = [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]
    sharing = [m for m in modules if any(id(p) in held for p in m.parameters())]
    models = sharing or [m for m in called if any(p.requires_grad for p in m.parameters())]
    inner = {id(child) for m in models for child in m.modules() if child is not m}
    return [m for m in models if id(m) not in inner]


TOOLS = (
    Tool("torchfix", "0.7.0", False, lint_by_torchfix),
    Tool("torch-audit", "0.3.0", True, run_with_torch_audit),
    Tool("torchtest2", "0.1.0", True, run_with_torchtest2),
)
