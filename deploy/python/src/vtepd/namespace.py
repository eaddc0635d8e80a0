"""Connections to abstract Unix sockets in other network namespaces.

An abstract name belongs to a network namespace. A thread that has entered the namespace connects,
and the socket stays there. gRPC opens its own sockets, so a relay leads from one to the other.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import Callable, TypeVar

RUN_NETNS = Path("/run/netns")
CLONE_NEWNET = 0x40000000
PIECE = 1 << 16

T = TypeVar("T")


def find(name: str, lab: str | None = None) -> Path:
    """The namespace of a node: its own name, or that which lab or ContainerLab gave it. ``lab`` is
    the name of the fabric.

    Raises LookupError if there is none, or several.
    """
    names = sorted(entry.name for entry in RUN_NETNS.iterdir()) if RUN_NETNS.is_dir() else []
    if lab is None and name in names:
        return RUN_NETNS / name
    of_lab = [f"{prefix}-{lab}-{name}" for prefix in ("lab", "clab")]
    found = [
        other
        for other in names
        if (
            other in of_lab
            if lab is not None
            else other.startswith(("lab-", "clab-")) and other.endswith(f"-{name}")
        )
    ]
    match found:
        case [only]:
            return RUN_NETNS / only
        case []:
            where = f" of the lab '{lab}'" if lab else ""
            raise LookupError(f"no network namespace '{name}'{where}: 'ip netns' lists all")
        case _:
            raise LookupError(
                f"several network namespaces are named {name} ({', '.join(found)}): name the lab"
            )


def _set_namespace(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter the network namespace: {os.strerror(error)}")


def enter(namespace: Path, work: Callable[[], T]) -> T:
    """Runs ``work`` in a new thread inside the namespace. It needs CAP_SYS_ADMIN, unless the
    namespace is the caller's own."""
    result: list[T] = []
    failure: list[BaseException] = []

    def inside() -> None:
        try:
            with namespace.open("rb") as file:
                own = os.stat("/proc/thread-self/ns/net")
                there = os.fstat(file.fileno())
                if (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino):
                    _set_namespace(file.fileno())
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def connect(namespace: Path, name: str) -> socket.socket:
    """Connects to an abstract socket in the namespace. Its listener must run as root or as the
    caller, because any user can bind a free name."""

    def work() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(b"\0" + name.encode())
            size = struct.calcsize("3i")
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            _, user, _ = struct.unpack("3i", peer)
            if user not in (0, os.geteuid()):
                raise PermissionError(f"@{name} belongs to user {user}, neither root nor you")
        except BaseException:
            connection.close()
            raise
        return connection

    return enter(namespace, work)


class Relay:
    """A Unix socket in a private directory that leads to an abstract one in a namespace."""

    def __init__(self, namespace: Path, name: str) -> None:
        self._namespace = namespace
        self._name = name
        # It fails here, with the reason, if nothing listens.
        self._first: socket.socket | None = connect(namespace, name)
        self._directory = tempfile.TemporaryDirectory(prefix="vtepd-")
        self.path = str(Path(self._directory.name) / "api")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends the relay. Connections end with their two ends."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        if self._first is not None:
            self._first.close()
        self._directory.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far, self._first = self._first, None
            try:
                far = far or connect(self._namespace, self._name)
            except OSError:
                near.close()
                continue
            for pair in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=pair, daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(PIECE):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One end has gone; the other one learns of it.
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
