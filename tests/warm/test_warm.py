"""A process of the warm Python starts, runs and ends as one of Python."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import warm_python
from tests.warm.server import IMPORT_AGAIN

SHOW = "import os, sys; print(sys.argv, __name__, os.getcwd(), os.getppid(), sys.path)"


def run(python, *words, **options):
    return subprocess.run([python, *words], capture_output=True, text=True, **options)


def write(folder, text=SHOW):
    (folder / "script.py").write_text(text)
    return "script.py"


@pytest.mark.parametrize("kind", ["file", "module", "text"])
def test_process_has_the_arguments_paths_and_parent_of_its_client(tmp_path, kind):
    words = {"file": [write(tmp_path)], "module": ["-m", "script"], "text": ["-c", SHOW]}[kind]
    alone = run(sys.executable, *words, "a b", "--c", cwd=tmp_path)
    warm = run(warm_python(), "-u", *words, "a b", "--c", cwd=tmp_path)
    assert (warm.stdout, warm.stderr) == (alone.stdout, "")


def test_module_runs_with_what_is_imported():
    text = "import sys; print('torch' in sys.modules, sys.executable)"
    assert run(warm_python(), "-c", text).stdout == f"True {warm_python()}\n"


def test_surestep_is_imported_again_if_that_is_asked():
    text = "import sys; print('surestep' in sys.modules)"
    environment = os.environ | {IMPORT_AGAIN: "1"}
    assert run(warm_python(), "-c", text).stdout == "True\n"
    assert run(warm_python(), "-c", text, env=environment).stdout == "False\n"


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('stopped')", 1, "stopped\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import atexit; atexit.register(print, 'bye'); print('end')", 0, ""),
    ],
)
def test_client_ends_as_its_process(text, code, error):
    done = run(warm_python(), "-c", text)
    assert (done.returncode, done.stdout) == (code, "end\nbye\n" if "bye" in text else "")
    assert done.stderr.endswith(error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signal_of_the_client_reaches_its_process(number):
    text = f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [{number}])"
    text += f"; print(1, flush=True); print(int(signal.sigwait([{number}])))"
    command = [warm_python(), "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "1\n"
        process.send_signal(number)
        assert process.stdout.read() == f"{int(number)}\n"
    assert process.returncode == 0


def test_ignored_signal_stays_ignored():
    text = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    assert run(warm_python(), "-c", text, preexec_fn=ignore).stdout == "True\n"


def test_process_of_a_killed_client_ends():
    command = [warm_python(), "-c", "import signal; print(1, flush=True); signal.pause()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "1\n"
        process.kill()
        assert process.stdout.read() == ""  # only the process has the other end


def test_server_goes_on_if_a_process_and_then_its_client_end_while_it_is_busy():
    text = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    command = [warm_python(), "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        process = int(client.stdout.readline())
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(Path(warm_python()).with_name("socket")))
            socket.send_fds(other, [bytes([8] * 8)], [0])  # the server waits for the rest
            os.kill(process, signal.SIGKILL)
            while Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z":
                pass
            client.kill()
            client.wait()
    assert run(warm_python(), "-c", "print(1)").stdout == "1\n"


def test_files_of_a_client_that_was_killed_before_it_had_asked_are_closed():
    reader, writer = os.pipe()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(Path(warm_python()).with_name("socket")))
        socket.send_fds(client, [bytes([8] * 8)], [writer])
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_client_of_a_server_that_has_ended_is_the_real_python(tmp_path):
    copy = tmp_path / "python"
    address = str(Path(warm_python()).with_name("socket"))
    copy.write_text(Path(warm_python()).read_text().replace(address, str(tmp_path / "none")))
    copy.chmod(0o755)
    done = run(str(copy), "-c", "import sys; print('torch' in sys.modules, sys.executable)")
    assert done.stdout == f"False {sys.executable}\n"


def test_other_options_need_the_real_python():
    assert run(warm_python(), "-S", "-c", "import sys; print(sys.flags.no_site)").stdout == "1\n"
