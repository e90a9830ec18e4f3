"""`surestep completion`: scripts that complete the command line of a shell."""

import re
from collections.abc import Iterator
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
  local word="${{COMP_WORDS[COMP_CWORD]}}" words="{commands}"
  if [ "$COMP_CWORD" -gt 1 ]; then
    local typed="${{COMP_WORDS[1]}} "
    if [ "$COMP_CWORD" -gt 2 ]; then typed="$typed${{COMP_WORDS[2]}} "; fi
    case "$typed" in
{cases}
      *) words="" ;;
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
# The words before the one that is typed; __fish_seen_subcommand_from also finds later words.
_FISH = """\
complete -c surestep -n "string match -q '{}' -- (string join ' ' (commandline -opc)[2..] '')" \
-a "{}"\
"""


@command("completion")
def run(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")], /) -> int:
    """Print a script that completes commands, recipes and options in bash, zsh or fish.

    Args:
        shell: bash, zsh or fish.
    """
    words = {typed: found for name in COMMANDS for typed, found in _words_of(name)}
    if shell == "fish":
        print("\n".join(_fish(words)))
        return 0
    cases = [f'      "{name} "*) words="{" ".join(found)}" ;;' for name, found in words.items()]
    script = _BASH.format(commands=" ".join(COMMANDS), cases="\n".join(cases))
    print(_START_ZSH + script if shell == "zsh" else script, end="")
    return 0


def _fish(words: dict[str, list[str]]) -> list[str]:
    lines = [_FISH.format("", " ".join(COMMANDS))]
    for name, found in words.items():
        lines.append(_FISH.format(f"{name} {'' if name in _GROUPS else '*'}", " ".join(found)))
    return lines


def _words_of(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each subcommand, then the command, with its own words: names, recipes and options."""
    page = _help_page(name)
    found = list(BUILT_IN if name in _RECIPES else _SHELLS if name == "completion" else ())
    if name in _GROUPS:
        found = _ROWS.findall(page)
        for inner in found:
            yield f"{name} {inner}", _flags_of(_help_page(name, inner))
    yield name, [*found, *_flags_of(page)]


def _flags_of(page: str) -> list[str]:
    flags = [flag for line in _FLAGS.findall(page) for flag in line.split(", ")]
    return list(dict.fromkeys([*flags, "--help"]))


def _help_page(*words: str) -> str:
    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*words, "--help-all" if words[0] in _RECIPES[:3] else "--help"])
    return printed.getvalue()
