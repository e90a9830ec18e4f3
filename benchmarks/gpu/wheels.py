"""The dependencies of surestep as wheels, for a machine without a network."""

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent


def list_dependencies() -> list[str]:
    """Return what surestep needs beside torch, and Pillow, with which the images are made."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    return [*tomllib.loads(text)["project"]["dependencies"], "pillow"]


def download(folder: Path) -> None:
    """Download the wheels for this version of Python into a folder."""
    _pip("download", "--only-binary", ":all:", "--dest", str(folder), *list_dependencies())


def install(folder: Path, target: Path) -> None:
    """Install the wheels of a folder into another one, without a network."""
    offline = ("--no-index", "--find-links", str(folder), "--target", str(target))
    _pip("install", "--quiet", *offline, *list_dependencies())


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)
