"""An SSH server of its own for the tests, on loopback, in a temporary folder."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.multi_rank.torchrun import free_port
from tests.needs import needs_program

INSTALL = "install it with `apt-get install --no-install-recommends openssh-server`"
_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
Subsystem sftp internal-sftp
LogLevel ERROR
"""


class SSHServer:
    """OpenSSH's server with one user, who has a key.

    Attributes:
        address: of a mirror behind it.
        path: the folder of that mirror.
        home: a home folder of a client, with the key of the user and that of the server.
    """

    def __init__(self) -> None:
        # Debian does not put it on the PATH of ordinary users. It wants its full path.
        places = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
        self._program = shutil.which("sshd", path=places) or needs_program("sshd", INSTALL)
        self._folder = Path(tempfile.mkdtemp(prefix="surestep-ssh-"))
        self._user = "daemon" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self._process: subprocess.Popen[bytes] | None = None
        self.path = self._folder / "mirror"
        self.home = self._folder / "home"
        self._create_keys()
        self._choose_port()

    def _create_keys(self) -> None:
        for name in ("host", "user"):
            self.create_key(self._folder / name)
        (self.home / ".ssh").mkdir(parents=True)
        (self._folder / "user").rename(self.home / ".ssh" / "id_ed25519")
        if os.geteuid() == 0:
            for path in (self._folder, self._folder / "host"):
                shutil.chown(path, self._user)

    def _choose_port(self) -> None:
        self._port = free_port()
        self.address = f"sftp://{self._user}@127.0.0.1:{self._port}{self.path}"
        self.trust(self._folder / "host.pub")
        (self._folder / "config").write_text(
            _CONFIG.format(port=self._port, folder=self._folder), encoding="utf-8"
        )

    def create_key(self, path: Path) -> None:
        """Create a key, and its public part beside it."""
        program = needs_program("ssh-keygen", INSTALL)
        subprocess.run([program, "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)

    def trust(self, public: Path) -> None:
        """Let clients expect this key of the server."""
        text = f"[127.0.0.1]:{self._port} {public.read_text()}"
        (self.home / ".ssh" / "known_hosts").write_text(text, encoding="utf-8")

    def start(self) -> None:
        """Start the server; return when it answers."""
        end = time.monotonic() + 120
        while not self._try_start(end):  # connections of a server that was killed may still end
            assert time.monotonic() < end, (self._folder / "log").read_text()
            time.sleep(0.1)

    def _try_start(self, end: float) -> bool:
        """Start the server; return False if it ends instead of answering."""
        # As root, it would need a user and a folder of its own; the account "nobody" may be locked.
        as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            found = pwd.getpwnam(self._user)
            as_user = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
        words = [self._program, "-D", "-e", "-f", self._folder / "config"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stderr=log, **as_user, cwd="/"
            )
        while not self._answers():
            if self._process.poll() is not None:
                return False
            assert time.monotonic() < end
            time.sleep(0.01)
        return True

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=10) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def stop(self) -> None:
        """Kill the server and the processes of its connections."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGSTOP)  # it starts no more
        self._signal(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def suspend(self) -> None:
        """Keep the connections open without answers."""
        assert self._process is not None
        self._signal(self._process.pid, signal.SIGSTOP)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process and its descendants."""
        for found in self._processes(pid):
            with contextlib.suppress(ProcessLookupError):  # its connection was closed meanwhile
                os.kill(found, number)

    def _processes(self, pid: int) -> list[int]:
        """Return a process and its descendants; those of a connection are in own sessions.

        A process of a connection may end while they are listed.
        """
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [pid, *(each for child in children for each in self._processes(int(child)))]

    def delete(self) -> None:
        """Stop the server, and delete its files."""
        self.stop()
        shutil.rmtree(self._folder)
