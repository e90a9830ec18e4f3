"""`surestep ckpt COMMAND`: what there is to do with checkpoints. No code of a run is run."""

import sys
from collections.abc import Callable
from importlib import import_module

from surestep.base.errors import suggest_names
from surestep.base.text import print_escaped

COMMANDS = {
    "list": "list RUN: a run's checkpoints: measured how, whole or not, and why they are kept",
    "verify": "verify RUN|CHECKPOINT: read every byte; exit code 1 where one is damaged",
    "export": "export CHECKPOINT OUT: write the weights as .safetensors, or .pt for torch.load",
    "diff": "diff A B: name what changed between two; exit code 1 where something did, 2 trouble",
}
USAGE = """usage: surestep ckpt COMMAND ...

{commands}

A checkpoint is named RUN@STEP, RUN@best, RUN@last, or by its folder; RUN alone is its best.
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
