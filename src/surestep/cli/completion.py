"""`surestep completion`: scripts that complete the command line of a shell."""

import re
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import Annotated, Literal

import tyro

from surestep.cli.main import COMMANDS, main
from surestep.cli.parse import command
from surestep.recipes.find import BUILT_IN

_FLAGS = re.compile(r"^[\s|│]*(?:-\w, )?(--[a-z][\w.-]*(?:, --[a-z][\w.-]*)*)", re.MULTILINE)
_ROWS = re.compile(r"^  ([a-z]+)\b", re.MULTILINE)  # of a page that lists subcommands
_GROUPS = ("ckpt", "mirror", "track")
_SHELLS = ("bash", "zsh", "fish")
_RECIPES = ("train", "plan", "search", "new")

_BASH = """\
_surestep() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _surestep surestep
"""
# The completion of bash needs that of zsh, which a short ~/.zshrc does not load. -i: no question
# about folders that others can write to.
_START_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
autoload -U +X bashcompinit && bashcompinit
"""


@command("completion")
def run(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")], /) -> int:
    """Print a script that completes commands, recipes and options in bash, zsh or fish.

    Args:
        shell: bash, zsh or fish.
    """
    words = {name: _words_of(name) for name in COMMANDS}
    if shell == "fish":
        print("\n".join(_fish(words)))
        return 0
    cases = [f'      {name}) words="{" ".join(found)}" ;;' for name, found in words.items()]
    script = _BASH.format(commands=" ".join(COMMANDS), cases="\n".join(cases))
    print(_START_ZSH + script if shell == "zsh" else script, end="")
    return 0


def _fish(words: dict[str, list[str]]) -> list[str]:
    first = f'complete -c surestep -n __fish_use_subcommand -a "{" ".join(COMMANDS)}"'
    line = 'complete -c surestep -n "__fish_seen_subcommand_from {}" -a "{}"'
    return [first, *(line.format(name, " ".join(found)) for name, found in words.items())]


def _words_of(name: str) -> list[str]:
    """Return the subcommands, the recipes and the options of a command, as its help lists them."""
    page = _help_page(name)
    found = list(BUILT_IN if name in _RECIPES else _SHELLS if name == "completion" else ())
    if name in _GROUPS:
        found = _ROWS.findall(page)
        page = "\n".join(_help_page(name, one) for one in found)
    flags = [flag for line in _FLAGS.findall(page) for flag in line.split(", ")]
    return [*found, *dict.fromkeys([*flags, "--help"])]


def _help_page(*words: str) -> str:
    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*words, "--help-all" if words[0] in _RECIPES[:3] else "--help"])
    return printed.getvalue()
