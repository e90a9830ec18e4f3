"""`surestep ckpt COMMAND`: inspect checkpoints. No code of the run is executed."""

import sys
from collections.abc import Callable
from importlib import import_module

from surestep.base.errors import suggest_names
from surestep.base.text import print_escaped

COMMANDS = {
    "list": "list RUN: list checkpoints with metrics, verification, and why each is kept",
    "verify": "verify RUN|CHECKPOINT: read every byte; exit code 1 if one is corrupted",
    "export": "export CHECKPOINT OUT: write the weights to a .safetensors or .pt file",
    "diff": "diff A B: show what changed; exit code 0 if nothing did, 1 if something did",
}
USAGE = """usage: surestep ckpt COMMAND ...

{commands}

CHECKPOINT is RUN@STEP, RUN@best, RUN@last or a checkpoint folder; RUN means RUN@best.
"""


def run(words: list[str]) -> int:
    """Run one of the commands."""
    command, *rest = words or ["--help"]
    if command in ("-h", "--help"):
        rows = [text.split(": ", 1) for text in COMMANDS.values()]
        width = max(len(call) for call, _ in rows)
        print(USAGE.format(commands="\n".join(f"  {call:<{width}}  {text}" for call, text in rows)))
        return 0
    if command not in COMMANDS:
        print_escaped(
            f"surestep ckpt: no command {command!r}. {suggest_names(command, COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    called: Callable[[list[str]], int] = import_module(f"surestep.cli.ckpt.{command}").run
    return called(rest)
