"""Check the files of installed packages, whose code is correct but for what is reported here.

`python -m tests.doctor.ecosystem torch lightning --select SS1` prints each finding, and how many
files were checked. Each finding is a bug of the package, or a false alarm of the rule.
"""

import argparse
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


def files_of(names: list[str]) -> list[Path]:
    """Return the files of packages that import torch."""
    folders = [SITE / name for name in names]
    paths = (path for folder in folders for path in sorted(folder.rglob("*.py")))
    return [path for path in paths if b"torch" in path.read_bytes()]


def main() -> int:
    """Print the findings in the chosen packages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--select", nargs="*", default=["SS"])
    given = parser.parse_args()
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
