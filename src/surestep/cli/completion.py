"""`surestep completion`: scripts that complete the command line of a shell."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from itertools import zip_longest
from typing import Annotated, Literal

import tyro

from surestep.cli.main import COMMANDS, main
from surestep.cli.parse import command
from surestep.recipes.find import BUILT_IN

# The names of an option, and what its value is called.
_FLAG = re.compile(
    r"^[\s|│]*(?:-\w, )?(--[a-z][\w.-]*(?:, --[a-z][\w.-]*)*)(?: ([^\s\[]+))?", re.MULTILINE
)
_ONE_OF = re.compile(r"One of ((?:[\w-]+, )*[\w-]+)\.")
_FILES = re.compile(r"FILE|FOLDER|PATH|RUN|STUDY")
_ROWS = re.compile(r"^  ([a-z]+)\b", re.MULTILINE)  # of a page that lists subcommands
_GROUPS = ("ckpt", "mirror", "track")
_SHELLS = ("bash", "zsh", "fish")
_FILE_NAMES = "<files>"
_NO_FILES = "compopt +o bashdefault +o default 2>/dev/null"  # only while bash completes
_RECIPES = ("train", "plan", "eject", "lr-find", "search", "tune", "prove", "new")
_WITH_RECIPE = (("train",), ("plan",), ("eject",), ("lr-find",), ("search",), ("tune",), ("prove",))

# Without words, bash completes names of files, unless an option takes none.
_BASH = """\
_surestep() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local words="{commands}" flags=""
  if [ "$word" = "=" ]; then word=""
  elif [ "$previous" = "=" ]; then previous="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  if [ "$COMP_CWORD" -gt 1 ]; then
    local typed="${{COMP_WORDS[1]}} "
    if [ "$COMP_CWORD" -gt 2 ]; then typed="$typed${{COMP_WORDS[2]}} "; fi
    case "$typed" in
{cases}
      *) words="" ;;
    esac
    case "$typed$previous" in
{values}
      *) if [ -n "$words" ] || [ "${{word#-}}" != "$word" ]; then words="$words $flags"; fi ;;
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
_FISH_TYPED = "string match -q '{}' -- (string join -- ' ' (commandline -opc)[2..] '')"
# The values of each option, separated by spaces: "" if it takes text or a number, _FILE_NAMES, or
# None if it takes nothing.
Flags = dict[str, str | None]


@command("completion")
def run(shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.arg(metavar="SHELL")], /) -> int:
    """Print a script that completes commands, recipes, options and their values.

    Args:
        shell: bash, zsh or fish.
    """
    words = {typed: found for name in COMMANDS for typed, found in _words_of(name)}
    if shell == "fish":
        print("\n".join(_fish(words)))
        return 0
    script = _BASH.format(
        commands=" ".join(COMMANDS),
        cases="\n".join(
            f'      "{name} "*) words="{" ".join(found)}" flags="{" ".join(flags)}" ;;'
            for name, (found, flags) in words.items()
        ),
        values="\n".join(_bash_values(words)),
    )
    print(_START_ZSH + script if shell == "zsh" else script, end="")
    return 0


def _bash_values(words: dict[str, tuple[list[str], Flags]]) -> Iterator[str]:
    """Yield a case for the options of all commands that have the same values."""
    patterns: dict[str, list[str]] = {}
    for name, (_, flags) in words.items():
        for flag, values in flags.items():
            if values is not None:
                patterns.setdefault(values, []).append(f'"{name} "*"{flag}"')
    for values, typed in patterns.items():
        then = 'words=""' if values == _FILE_NAMES else f'words="{values}"; {_NO_FILES}'
        yield f"      {'|'.join(typed)}) {then} ;;"


def _fish(words: dict[str, tuple[list[str], Flags]]) -> Iterator[str]:
    yield f'complete -c surestep -n "{_FISH_TYPED.format("")}" -a "{" ".join(COMMANDS)}"'
    for name, (found, flags) in words.items():
        typed = _FISH_TYPED.format(f"{name} {'' if name in _GROUPS else '*'}")
        if name == "search":
            typed += f"; and not {_FISH_TYPED.format('search show *')}"
        condition = f'complete -c surestep -n "{typed}"'
        plain = [flag for flag, values in flags.items() if values is None]
        yield f'{condition} -a "{" ".join([*found, *plain])}"'
        for flag, values in flags.items():
            if values == _FILE_NAMES:
                yield f"{condition} -l {flag[2:]} -r -F"
            elif values is not None:
                yield f'{condition} -l {flag[2:]} -x -a "{values}"'


def _words_of(name: str) -> Iterator[tuple[str, tuple[list[str], Flags]]]:
    """Yield each subcommand, then the command, with its names and its options."""
    page = _help_page(name)
    found = list(BUILT_IN if name in _RECIPES else _SHELLS if name == "completion" else ())
    subcommands = _ROWS.findall(page) if name in _GROUPS else []
    if name == "search":
        subcommands = ["show"]
    for subcommand in subcommands:
        yield f"{name} {subcommand}", ([], _flags_of(_help_page(name, subcommand)))
    yield name, ([*found, *subcommands], _flags_of(page))


def _flags_of(page: str) -> Flags:
    flags: Flags = {}
    matches = list(_FLAG.finditer(page))
    for match, after in zip_longest(matches, matches[1:]):
        text = page[match.end() : after.start() if after else None]
        values = _values_of(match[2], " ".join(text.split())) if match[2] else None
        flags.update(dict.fromkeys(match[1].split(", "), values))
    return {**flags, "--help": None}


def _values_of(kind: str, text: str) -> str:
    """Return the values of an option, by what its value is called and its description."""
    if _FILES.match(kind.removeprefix("{None}|")):
        return _FILE_NAMES
    if (names := _ONE_OF.search(text)) is not None:
        return names[1].replace(",", "")
    words = re.split(r"[{}|,]+", kind)  # auto|FLOAT, {text,json}, {None}|FILE
    return " ".join(word for word in words if word and word != "None" and not word.isupper())


def _help_page(*words: str) -> str:
    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main([*words, "--help-all" if words in _WITH_RECIPE else "--help"])
    return printed.getvalue()
