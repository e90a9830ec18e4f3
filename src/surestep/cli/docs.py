"""`surestep docs`."""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import tyro

import surestep
from surestep.base.errors import ConfigError, suggest_names
from surestep.base.text import print_escaped
from surestep.cli.parse import command

_INSTALLED = "share/surestep/docs/"  # where a wheel has the pages


@command("docs")
def run(topic: Annotated[str | None, tyro.conf.arg(metavar="TOPIC")] = None, /) -> int:
    """Print a page of the documentation, or list the pages.

    Args:
        topic: Name of a page, such as running; the pages are listed without it.
    """
    pages = find_pages()
    if topic is not None:
        name = Path(topic).name.removesuffix(".md")  # a link from another page works too
        if name not in pages:
            raise ConfigError(f"There is no page {topic!r}. {suggest_names(name, pages)}")
        print_escaped(pages[name].read_text(encoding="utf-8").rstrip("\n"))
        return 0
    width = max(map(len, pages), default=0)
    for name, path in pages.items():
        with path.open(encoding="utf-8") as file:
            title = next((line for line in file if line.startswith("# ")), "")
        print_escaped(f"  {name:<{width}}  {title.removeprefix('#').strip()}")
    return 0


def find_pages() -> dict[str, Path]:
    """Return the pages by name: those of the clone that runs, or else of the installed wheel.

    Raises:
        ConfigError: there are none.
    """
    paths = list((Path(surestep.__file__).parents[2] / "docs").glob("*.md"))
    if not paths:
        try:
            files = metadata.files("surestep") or []
        except metadata.PackageNotFoundError:
            files = []
        own = [file for file in files if _INSTALLED in file.as_posix()]
        paths = [Path(str(file.locate())).resolve() for file in own]
    if not paths:
        raise ConfigError(
            "The pages of the documentation are not installed. Install surestep with pip again, or "
            "read the folder docs of a clone."
        )
    pages = {path.stem: path for path in paths if path.stem != "README"}
    return dict(sorted(pages.items()))
