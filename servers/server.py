"""Runs a server with its own directory and port, which dies with the process that started it.

With SERVERS=wheels in the environment, only programs in Python packages are used, and not those of the system.
"""

import importlib.util
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

if os.environ.get("SERVERS", "") not in ("", "wheels"):
    raise ValueError(f"SERVERS is {os.environ['SERVERS']!r}; it can only be 'wheels'.")
WHEELS_ONLY = os.environ.get("SERVERS") == "wheels"
HOST = "127.0.0.1"
START_SECONDS = 60

# Becomes the server. The user changes first, because Linux then forgets the signal for the death of the parent. The
# last check is for a parent that died before.
_BECOME = """
import ctypes, os, pwd, sys
parent, user, death_signal, *command = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(pwd.getpwnam(user).pw_gid)
    os.setuid(pwd.getpwnam(user).pw_uid)
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal))
if os.getppid() == int(parent):
    os.execv(command[0], command)
"""

# Removes a directory once its pipe says so, or once the process at the other end is dead. The loop is for a server that
# was just killed and writes a last file.
_REMOVE = """
import os, shutil, sys, time
sys.stdin.readline()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""

_PYTHON = [sys.executable, "-I", "-S", "-c"]


@dataclass
class Server:
    name: str
    greet: Callable[[int], None]  # fails until there is an answer on this port
    directory: Path
    port: int
    user: str  # for a server that refuses to run as root
    stop_signal: signal.Signals = signal.SIGTERM  # a clean shutdown
    kill_signal: signal.Signals = signal.SIGKILL  # a crash
    url: str = ""
    command: list[str] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @cached_property
    def version(self) -> str:
        """The version that the program prints, such as "7.0.15"."""
        said = subprocess.check_output([self.command[0], "--version"], text=True)
        return re.findall(r"\d+[.\d]*\.\d+", said)[0]

    def start(self, *command: str) -> None:
        """Start with this command, or with that of the last time, the same port and data. Wait for an answer."""
        self.command = list(command) or self.command
        self.process = self._run(self.command)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.greet(self.port)
            except Exception as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise RuntimeError(f"{self.name} did not start:\n{self._log_end()}") from error
                time.sleep(0.01)

    def stop(self) -> None:
        self._end(self.stop_signal)

    def kill(self) -> None:
        self._end(self.kill_signal)

    def pause(self) -> None:
        """Answer nothing until `resume`, with connections open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def prepare(self, *command: str) -> None:
        """Run a command before the first start."""
        if self._run(list(command)).wait():
            raise RuntimeError(f"{self.name} could not be set up:\n{self._log_end()}")

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        if self.user:
            subprocess.run(["chown", "-R", self.user, self.directory], check=True)
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(
                dies_with_parent(command, self.kill_signal, self.user),
                cwd=self.directory,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the server
            )

    def _end(self, how: signal.Signals) -> None:
        if self.process:
            self.process.send_signal(how)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait()

    def _log_end(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-3000:]


def dies_with_parent(command: list[str], how: signal.Signals = signal.SIGKILL, user: str = "") -> list[str]:
    """Return the command line of a child that gets this signal when the thread that starts it dies."""
    return [*_PYTHON, _BECOME, str(os.getpid()), user, str(int(how)), *command]


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Yield a directory that, unlike those of `tempfile`, is removed even if this process is killed."""
    path = tempfile.mkdtemp(prefix="notifications-counter-")
    remover = subprocess.Popen([*_PYTHON, _REMOVE, path], stdin=subprocess.PIPE, cwd="/", start_new_session=True)
    try:
        yield Path(path)
    finally:
        remover.communicate(b"\n")


def free_port() -> int:
    """Return one of so many ports that it is not used again soon, because its server may restart there.

    It is below the ports of outgoing connections on Linux, so that none of them takes it. The second port of a Redis
    Cluster node, 10,000 higher, is below them, too.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 22_000)  # tests seed random
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port


@contextmanager
def serving(name: str, greet: Callable[[int], None], is_root_refused: bool = False) -> Iterator[Server]:
    """Yield a server that the block starts."""
    user = ""
    if is_root_refused and os.geteuid() == 0:
        user = "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"
    with temporary_directory() as directory:
        server = Server(name, greet, directory, free_port(), user)
        try:
            yield server
        finally:
            server.kill()


class Missing(RuntimeError):
    """There is no program for this server. The text says which places were searched."""


def find_program(server: str, *names: str, package: str = "", pattern: str = "") -> Path:
    """Return the first of these programs that `.ci` has brought into build/, on PATH or where Debian installs servers,
    or the one in a Python package."""
    if not WHEELS_ONLY:
        brought = str(Path(__file__).resolve().parent.parent / "build" / server.lower())
        debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -float(path.parts[4]))
        search = os.environ.get("PATH", os.defpath)
        path = os.pathsep.join([brought, *map(str, debian), search, "/usr/sbin", "/usr/local/sbin"])
        for name in names:
            if found := shutil.which(name, path=path):
                return Path(found)
    if package and (spec := importlib.util.find_spec(package)):
        for found in Path(spec.origin).parent.glob(pattern):
            return found
    where = f"{' (hidden by SERVERS=wheels)' * WHEELS_ONLY}{f', no package {package}' * bool(package)}"
    raise Missing(f"no {server}: no {' or '.join(names)} in PATH or /usr/sbin{where}")
