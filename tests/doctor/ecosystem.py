"""Check the files of installed packages, whose code is correct but for what is reported here.

`python -m tests.doctor.ecosystem torch lightning --select SS1` prints each finding, and how many
files were checked. Each finding is a bug of the package, or a false alarm of the rule. `--write`
writes those of KNOWN to docs/rules/ecosystem.md, and test_ecosystem.py fails for any other.
"""

import argparse
import re
import sys
import sysconfig
import time
from pathlib import Path

from surestep.doctor.check import check_file
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project, UnreadableError, read_source

SITE = Path(sysconfig.get_paths()["purelib"])
PACKAGES = (
    *("torch", "lightning", "pytorch_lightning", "accelerate", "transformers", "ignite"),
    *("fastai", "timm", "trl", "peft", "sentence_transformers", "deepspeed", "torchmetrics"),
    *("bitsandbytes", "optuna", "mlflow", "wandb"),
)
PAGE = Path(__file__).parents[2] / "docs" / "rules" / "ecosystem.md"
HEADING = "## Installed packages\n"
INTRO = """\
These are the errors and warnings in files of packages that the tests use. A test checks files with
a training step of these packages, and fails for an error or a warning that is not in this table.
"""
# Errors and warnings by file and rule: why each is right, or is accepted.
KNOWN = {
    ("accelerate/test_utils/scripts/test_merge_weights.py", "SS511"): (
        "right: `nn.Softmax()` has no `dim`; the module is never called"
    ),
    ("deepspeed/runtime/domino/transformer.py", "SS411"): (
        "right: `dropout_p` does not depend on the mode"
    ),
    ("deepspeed/runtime/sequence_parallel/ulysses_sp.py", "SS701"): (
        "accepted: the outputs keep their graph, but `backward` runs on each at once and frees "
        "its saved tensors"
    ),
    ("torch/_inductor/fx_passes/numeric_utils.py", "SS101"): (
        "right: gradients of all iterations add up; both models get the same, so it does no harm"
    ),
}


def files_of(names: list[str]) -> list[Path]:
    """Return the files of packages that import torch."""
    folders = [SITE / name for name in names]
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return [path for path in paths if b"torch" in path.read_bytes()]


def sample_training_files(package: str, number: int) -> list[Path]:
    """Return files with a training step, spread over a package, and those of KNOWN."""
    step = re.compile(rb"\.step\(|\.backward\(")
    # torch.testing has wrong loops, which its own tests expect to fail.
    paths = [p for p in files_of([package]) if SITE / "torch" / "testing" not in p.parents]
    paths = [path for path in paths if step.search(path.read_bytes())]
    chosen = set(paths[:: -(-len(paths) // number) or 1])
    known = {SITE / file for file, _ in KNOWN if file.startswith(f"{package}/")}
    return sorted(chosen | {path for path in known if path.is_file()})


def find_unknown(paths: list[Path], root: Path = SITE) -> list[str]:
    """Return a line for each error and warning in files below a folder that is not in KNOWN."""
    rules, project = load_rules(), Project()
    return [
        f"{path.relative_to(root)}:{found.line} {found.rule} {found.message}"
        for path in paths
        for found in check_file(read_source(path), rules, project)
        if found.severity in ("error", "warning")
        and (path.relative_to(root).as_posix(), found.rule) not in KNOWN
    ]


def render_page(text: str) -> str:
    """Return the page with KNOWN as its last section."""
    rows = [
        f"| `{file}` | [{rule}]({next(PAGE.parent.glob(f'{rule.lower()}-*')).name}) | {why} |"
        for (file, rule), why in KNOWN.items()
    ]
    table = "\n".join(["| file | rule | right or not |", "|---|---|---|", *rows])
    return f"{text.partition(HEADING)[0]}{HEADING}\n{INTRO}\n{table}\n"


def main() -> int:
    """Print the findings in the chosen packages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--select", nargs="*", default=["SS"])
    parser.add_argument("--write", action="store_true", help="write KNOWN to the page")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    rules = [rule for rule in load_rules() if rule.code.startswith(tuple(given.select))]
    started, count, project = time.monotonic(), 0, Project()
    paths = files_of(list(given.packages))
    for path in paths:
        try:
            file = read_source(path)
        except UnreadableError as error:
            print(error)
            continue
        for found in check_file(file, rules, project):
            count += 1
            print(f"{found.file}:{found.line}:{found.column} {found.rule} {found.message}")
    seconds = time.monotonic() - started
    print(f"{count} findings in {len(paths)} files, {seconds:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
