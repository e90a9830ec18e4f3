"""Other Pythons on this machine compile the package, and import what needs the standard library."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
RELEASES = ("3.11", "3.12", "3.13", "3.14")  # those of pyproject.toml
SCRIPT = """
import sys, warnings
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

source, imported = Path(sys.argv[1]), 0
sys.path.insert(0, str(source))
sys.dont_write_bytecode = True
warnings.simplefilter("error")
paths = sorted(source.rglob("*.py"))
codes = {str(path): compile(path.read_bytes(), str(path), "exec") for path in paths}
SourceFileLoader.source_to_code = lambda self, data, path, **_: (
    codes.get(path) or compile(data, path, "exec")  # each takes milliseconds
)
for path in paths:
    module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
    try:
        import_module(module)
        imported += 1
    except ModuleNotFoundError as error:
        name = error.name.partition(".")[0]
        # A module that this Python no longer has is not that of a library.
        if name in {"surestep", *sys.stdlib_module_names, *sys.argv[2:]}:
            raise
print(imported)
"""


def find_pythons():
    """Return another Python of each release that can be found, by release."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = {}
    for release in RELEASES:
        installed = sorted(Path.home().glob(f".pyenv/versions/{release}.*/bin/python"))
        on_path = shutil.which(f"python{release}")
        for python in (*installed, *filter(None, [on_path])):
            asked = subprocess.run([python, "-IS", "-V"], capture_output=True, text=True)
            if asked.returncode == 0 and f"Python {release}." in asked.stdout and release != own:
                pythons[release] = python
    return pythons


@pytest.mark.slow("starts other Pythons")
def test_other_pythons_import_what_needs_no_library():
    pythons = find_pythons()
    if not pythons:
        pytest.skip(f"there is no other Python of {', '.join(RELEASES)} on this machine")
    running = {
        release: subprocess.Popen(
            [python, "-IS", "-c", SCRIPT, SOURCE, *sys.stdlib_module_names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for release, python in pythons.items()
    }
    for release, process in running.items():
        imported, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, ""), f"Python {release}"
        assert int(imported) > 100, f"Python {release}"


def test_releases_are_those_of_the_classifiers():
    text = (SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert tuple(re.findall(r"Python :: (3\.\d+)", text)) == RELEASES
