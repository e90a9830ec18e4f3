"""The scripts of `surestep completion` complete what the commands take."""

import subprocess

import pytest

from surestep.cli.main import COMMANDS

TYPE = """
source completion.bash
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_surestep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The scripts, by shell; each is printed once."""
    folder = tmp_path_factory.mktemp("scripts")
    return {"folder": folder}


@pytest.fixture
def script(surestep, scripts):
    def text(shell):
        if shell not in scripts:
            answer = surestep("completion", shell)
            assert (answer.code, answer.err) == (0, "")
            scripts[shell] = answer.out
            (scripts["folder"] / f"completion.{shell}").write_text(answer.out)
        return scripts[shell]

    return text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("surestep tr", ["train", "track"]),
        ("surestep train dig", ["digits"]),
        ("surestep train digits --optim.l", ["--optim.lr", "--optim.lr-decay"]),
        ("surestep plan --all", ["--all"]),
        ("surestep predict --mc", ["--mc-dropout"]),
        ("surestep ckpt l", ["list"]),
        ("surestep completion z", ["zsh"]),
        ("surestep evaluate --nothing", []),
    ],
)
def test_bash_completes_commands_recipes_and_options(script, scripts, words, found):
    script("bash")
    done = subprocess.run(
        ["bash", "-c", TYPE.format(words=words)],
        cwd=scripts["folder"],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    completed = done.stdout.split()
    assert completed[: len(found)] == found or set(found) <= set(completed)
    assert bool(found) == bool(completed)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_has_every_command(script, shell):
    text = script(shell)
    assert " ".join(COMMANDS) in text
    assert all(f"{name}) words=" in text or f'from {name}"' in text for name in COMMANDS)
    assert ("bashcompinit" in text) == (shell == "zsh")


def test_unknown_shell_is_rejected(surestep):
    answer = surestep("completion", "tcsh")
    assert answer.code == 2
    assert "bash" in answer.err
