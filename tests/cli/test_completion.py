"""The scripts of `surestep completion` complete what the commands take."""

import os
import pty
import re
import shutil
import subprocess
from contextlib import suppress

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
        ("surestep ckpt list --a", []),
        ("surestep ckpt export --a", ["--average"]),
        ("surestep ckpt list --j", ["--json"]),
        ("surestep ckpt --", ["--help"]),
        ("surestep completion z", ["zsh"]),
        ("surestep evaluate --nothing", []),
        ("surestep train digits --optim.name ada", ["adadelta", "adafactor", "adagrad", "adam"]),
        ("surestep train digits --optim.name = sg", ["sgd"]),  # bash splits at =
        ("surestep plan digits --precision ''", ["auto", "fp32", "tf32", "bf16", "fp16"]),
        ("surestep train digits --checkpoint.every ''", []),
        ("surestep train digits --config ''", []),  # bash completes files
        ("surestep train --json --opt", ["--optim.name"]),
        ("surestep train digits --logging.trackers ''", ["tensorboard", "mlflow", "wandb"]),
        ("surestep search digits --mode m", ["min", "max"]),
        ("surestep search digits --sampler t", ["tpe"]),
        ("surestep search sh", ["show"]),
        ("surestep search show ''", []),  # folders of studies
        ("surestep search show study --", ["--storage", "--html", "--json", "--help"]),
        ("surestep tune digits --allow ''", ["numbers"]),
        ("surestep check --format s", ["sarif"]),
        ("surestep ckpt list ''", []),  # run folders
    ],
)
def test_bash_completes_commands_recipes_options_and_values(script, scripts, words, found):
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


# Types lines, each with a Tab, in a terminal; without -i, bash has no completion.
BASH = """
source completion.bash
surestep() { echo "RAN $*."; }
bind 'set bell-style none'
"""


@pytest.mark.slow("starts an interactive bash")
def test_bash_completes_files_only_where_an_option_takes_them(script, scripts):
    script("bash")
    (scripts["folder"] / "rc").write_text(BASH)
    typed = [
        "surestep train digits --config completion.b",
        "surestep train digits --checkpoint.every completion.b",
        "surestep train digits --optim.name=sp",
        "surestep search show completion.b",
    ]
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        ["bash", "--rcfile", "rc", "-i"],
        cwd=scripts["folder"],
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        start_new_session=True,
    )
    os.close(terminal)
    for line in [*(f"{line}\t" for line in typed), "exit"]:
        os.write(screen, f"{line}\n".encode())
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while data := os.read(screen, 4096):
            shown += data
    os.close(screen)
    process.wait(60)
    ran = re.findall(r"RAN (.*?) *\.\r", shown.decode())
    assert ran == [
        "train digits --config completion.bash",
        "train digits --checkpoint.every completion.b",
        "train digits --optim.name=sparse_adam",
        "search show completion.bash",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_has_every_command(script, shell):
    text = script(shell)
    assert " ".join(COMMANDS) in text
    assert all(f'"{name} "*) words=' in text or f"'{name} " in text for name in COMMANDS)
    assert ("bashcompinit" in text) == (shell == "zsh")


OF_CKPT_LIST = {"--verify", "--json", "--help"}  # other subcommands have more


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here. Install it: apt install {shell}")


def test_fish_completes_the_options_of_the_subcommand(script, scripts):
    need("fish")
    script("fish")

    def complete(line):
        text = f"source completion.fish; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", text],
            cwd=scripts["folder"],
            capture_output=True,
            text=True,
        )
        assert done.stderr == ""
        return {row.split("\t")[0] for row in done.stdout.splitlines()}

    assert complete("surestep ckpt list --") == OF_CKPT_LIST
    assert {"list", "verify"} <= complete("surestep ckpt ")
    assert complete("surestep tr") == {"train", "track"}
    of_track = {"--to", "--all", "--allow", "--help"}
    assert complete("surestep track replay --") == of_track  # replay is a command too
    assert "digits" in complete("surestep train ")
    assert complete("surestep train digits --optim.name sp") == {"sparse_adam"}
    assert complete("surestep train digits --optim.name=sg") == {"--optim.name=sgd"}
    assert complete("surestep train digits --checkpoint.every ") == set()
    assert "completion.fish" in complete("surestep train digits --config ")
    assert complete("surestep search show study --") == {"--storage", "--html", "--json", "--help"}
    assert "completion.fish" in complete("surestep search show ")


# Types a line and Tab in a terminal, as zsh's own tests do; the first ~/.zshrc has nothing else.
ZSH = """
zmodload zsh/zpty
zpty terminal zsh -i
zpty -r terminal first '*READY*'
zpty -w -n terminal $'surestep ckpt list --j\t\n'
zpty -r terminal second '*RAN*READY*'
zpty -w -n terminal $'surestep train digits --optim.name sp\t\n'
zpty -r terminal third '*RAN*READY*'
zpty -w -n terminal $'surestep train digits --config zsh\t\n'
zpty -r terminal fourth '*RAN*READY*'
print -r -- $first $second $third $fourth
"""


@pytest.mark.slow("starts an interactive zsh")
@pytest.mark.parametrize("before", ["", "autoload -Uz compinit && compinit -i\n"])
def test_zsh_completes_in_a_plain_zshrc(script, scripts, tmp_path, before):
    need("zsh")
    script("zsh")
    source = (
        f"source {scripts['folder']}/completion.zsh\nsurestep() {{ print \\RAN $@; }}\nPS1=READY\n"
    )
    (tmp_path / ".zshrc").write_text(before + source)
    (tmp_path / "zsh-options.toml").touch()
    done = subprocess.run(
        ["zsh", "-f", "-c", ZSH],
        cwd=tmp_path,
        env={**os.environ, "ZDOTDIR": str(tmp_path), "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "not found" not in done.stdout + done.stderr
    assert "RAN ckpt list --json" in done.stdout
    assert "RAN train digits --optim.name sparse_adam" in done.stdout
    assert "RAN train digits --config zsh-options.toml" in done.stdout


def test_unknown_shell_is_rejected(surestep):
    answer = surestep("completion", "tcsh")
    assert answer.code == 2
    assert "bash" in answer.err
