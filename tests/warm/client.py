import os
import signal
import sys

# Written in front of this text: PYTHON, the real one, and ADDRESS, the socket of the server.


def is_known(words):
    """Whether the server understands the words; the real Python takes all others."""
    for word in words:
        if not word.startswith("-") or word in ("-c", "-m"):
            return "multiprocessing" not in " ".join(words)  # which passes more files
        if word != "-u":
            return False
    return False


def main():
    words = sys.argv[1:]
    if not is_known(words):
        os.execv(PYTHON, [PYTHON, *words])  # noqa: F821
    import json
    import resource
    import socket

    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_CORE")
    }
    ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
    request = {
        **{"words": words, "environment": dict(os.environ), "folder": os.getcwd()},
        **{"limits": limits, "ignored": [int(n) for n in ignored], "mask": os.umask(0)},
        **{"executable": sys.argv[0], "parent": os.getppid(), "client": os.getpid()},
    }
    os.umask(request["mask"])
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(ADDRESS)  # noqa: F821
    except OSError:  # it has ended: this start takes longer
        os.execv(PYTHON, [PYTHON, *words])  # noqa: F821
    forwarded = {1, 2, 3, 10, 12, 15}.difference(request["ignored"])
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # until there is a process to send them to
    text = json.dumps(request).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(text)
    answers = server.makefile("r")
    pid = int(answers.readline())
    for number in forwarded:
        signal.signal(number, lambda n, _: os.kill(pid, n))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    status = int(answers.readline() or "9")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
        signal.pause()
    os._exit(os.WEXITSTATUS(status))


main()
