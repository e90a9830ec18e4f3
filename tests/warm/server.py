"""Fork a process for each client; `tests/warm/__init__.py` says for what."""

import atexit
import builtins
import ctypes
import gc
import importlib
import json
import os
import random
import resource
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from surestep.doctor.rule import load_rules
from tests.forked import forget_surestep
from tests.huge_pages import use_huge_pages
from tests.shortcuts import take_shortcuts

IMPORT_AGAIN = "IMPORT_SURESTEP_AGAIN"  # in the environment of a process with other plug-ins
PRELOADED = (
    *("torch", "torch._dynamo", "torch.distributed.run", "torch.distributed.fsdp"),
    *("optuna", "surestep.cli.train", "surestep.engine.parallel.fsdp", "surestep.tuning.trial"),
)


def prepare() -> list[str]:
    """Import what processes need; return the paths of modules that each has."""
    for module in PRELOADED:
        with suppress(ImportError):  # optuna, if only some extras are installed
            importlib.import_module(module)
    load_rules()
    take_shortcuts()
    sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    gc.disable()
    use_huge_pages()
    given = _paths()
    return [path for path in sys.path[1:] if path not in given]


def serve(address: str) -> dict[str, Any]:
    """Answer clients until standard input ends; return the request in each forked process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for file in (0, reader, listener):
        selector.register(file, selectors.EVENT_READ)
    clients: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                os._exit(0)
            elif key.fileobj == reader:
                os.read(reader, 100)
                for pid, status in _ended(list(clients)):
                    _answer(clients.pop(pid), status, selector)
            elif key.fileobj is listener:
                client, _ = listener.accept()
                try:
                    request, files = receive(client)
                except (OSError, ValueError):  # it was killed
                    client.close()
                    continue
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)  # asyncio of Python 3.12 may have done this
                    os.close(reader)
                    os.close(writer)
                    for own in (selector, listener, client, *clients.values()):
                        own.close()
                    become(request, files)
                    return request
                for file in files:
                    os.close(file)
                with suppress(OSError):  # of a killed client
                    client.sendall(f"{pid}\n".encode())
                clients[pid] = client
                selector.register(client, selectors.EVENT_READ, pid)
            elif key.data in clients:  # the client was killed, and its process has not ended
                selector.unregister(key.fileobj)
                os.kill(key.data, signal.SIGKILL)


def _ended(pids: list[int]) -> list[tuple[int, int]]:
    found = [os.waitpid(pid, os.WNOHANG) for pid in pids]
    return [(pid, status) for pid, status in found if pid]


def _answer(client: socket.socket, status: int, selector: selectors.BaseSelector) -> None:
    with suppress(KeyError):
        selector.unregister(client)
    with suppress(OSError):  # of a killed client
        client.sendall(f"{status}\n".encode())
    client.close()


def receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request with its files; a `ValueError` is the request of a killed client."""
    size, files, *_ = socket.recv_fds(client, 8, 3)
    text = b""
    while len(text) < int.from_bytes(size, "little"):
        found = client.recv(1 << 20)
        if not found:
            break
        text += found
    try:
        return json.loads(text), files
    except ValueError:
        for file in files:  # who reads them would wait for this process
            os.close(file)
        raise


def become(request: dict[str, Any], files: list[int]) -> None:
    """Give this process what its client has."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.setpgid(0, 0)
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, name), limit)
    os.umask(request["mask"])
    _enter_namespaces(request["client"])
    sys.executable = request["executable"]
    parent: int = request["parent"]
    os.getppid = lambda: parent if os.path.exists(f"/proc/{parent}") else 1
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    random.seed()
    np.random.seed()
    gc.enable()


def _enter_namespaces(client: int) -> None:
    """Enter the network and the host name of a client, if they are not those of the server."""
    for kind in ("net", "uts"):
        theirs = f"/proc/{client}/ns/{kind}"
        if os.path.exists(theirs) and os.readlink(theirs) != os.readlink(f"/proc/self/ns/{kind}"):
            with open(theirs) as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter {theirs}")


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def run(words: list[str], base: list[str]) -> None:
    """Do what `python WORDS` does, without the time that Python needs to free torch."""
    codes: list[int] = []
    atexit.register(lambda: os._exit(codes[0]) if codes else None)  # the first, so it runs last
    try:
        _run(words, base)
        codes.append(0)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            codes.append(stop.code or 0)
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(words: list[str], base: list[str]) -> None:
    if os.environ.get(IMPORT_AGAIN):
        forget_surestep()
    kind, *rest = [word for word in words if word != "-u"]
    sys.path[:] = dict.fromkeys([*_paths(), *base])
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main |= {"__name__": "__main__", "__builtins__": builtins, "__spec__": None}
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        sys.argv = [kind, *rest]
        main["__file__"] = kind
        with open(kind, "rb") as file:
            exec(compile(file.read(), kind, "exec"), main)
