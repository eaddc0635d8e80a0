"""vtepd on a leaf."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import grpc

from .namespace import Relay, find
from .v1 import vtepd_pb2 as v1
from .v1.vtepd_pb2_grpc import VtepdStub

SOCKET = "vtepd-api"
TIMEOUT = 30.0


class LeafError(Exception):
    """vtepd could not be reached, or refused a request. The message says what to do."""


class RefusedError(LeafError, grpc.RpcError):
    """vtepd refused a request, or its answer failed: the message is vtepd's."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.details() or str(error))
        self._error = error

    def code(self) -> grpc.StatusCode:
        """The status of gRPC."""
        return self._error.code()

    def details(self) -> str:
        """The message."""
        return str(self)


class _Requests:
    """A stub whose errors have a readable message."""

    def __init__(self, stub: VtepdStub) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        request = getattr(self._stub, name)

        def ask(*arguments: Any, **options: Any) -> Any:
            try:
                answer = request(*arguments, **options)
            except grpc.RpcError as error:
                raise RefusedError(error) from error
            return _each(answer) if hasattr(answer, "__next__") else answer

        return ask


def _each(answers: Any) -> Iterator[Any]:
    try:
        yield from answers
    except grpc.RpcError as error:
        raise RefusedError(error) from error
    finally:
        answers.cancel()


class Leaf:
    """A connection to the vtepd of a leaf.

    ``Leaf("leaf1")`` is a network namespace of this name, or the node of a running lab. If several
    labs have one, ``lab`` names the lab: ``Leaf("leaf1", lab="four")``.
    ``Leaf(pid=4711)`` is the namespace of a process, for example of a container. ``Leaf()`` is the
    caller's own namespace. ``socket`` is vtepd's ``[api] listen``: an abstract name with ``@``, or
    the path of a file, which needs no namespace.

    A request that vtepd refuses raises ``LeafError``, which is then a ``grpc.RpcError``, too.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        lab: str | None = None,
        pid: int | None = None,
        socket: str = f"@{SOCKET}",
        timeout: float = TIMEOUT,
    ) -> None:
        self._relay: Relay | None = None
        self._timeout = timeout
        path = socket
        if socket.startswith("@"):
            if name is not None and pid is not None:
                raise LeafError("name the leaf by its name or by a process, not by both")
            try:
                if name is not None:
                    namespace = find(name, lab)
                else:
                    namespace = Path(f"/proc/{'self' if pid is None else pid}/ns/net")
                self._relay = Relay(namespace, socket[1:])
            except ConnectionRefusedError:
                where = name or (f"process {pid}" if pid else "this namespace")
                raise LeafError(f"no vtepd listens on {socket} in {where}: start it there") from None
            except (OSError, LookupError) as error:
                raise LeafError(str(error)) from error
            path = self._relay.path
        elif not Path(path).exists():
            raise LeafError(f"{path} is missing: start vtepd with --api-listen {path}")
        self._channel = grpc.insecure_channel(
            f"unix:{path}", options=[("grpc.default_authority", "vtepd")]
        )
        self.stub = cast(VtepdStub, _Requests(VtepdStub(self._channel)))

    def close(self) -> None:
        self._channel.close()
        if self._relay is not None:
            self._relay.close()

    def __enter__(self) -> Leaf:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def status(self) -> v1.Status:
        """State of the daemon."""
        return self.stub.GetStatus(v1.GetStatusRequest(), timeout=self._timeout)

    def vnis(self, vni: int | None = None) -> list[v1.Vni]:
        """Every vxlan netdev."""
        return list(self.stub.ListVnis(v1.ListVnisRequest(vni=vni), timeout=self._timeout))

    def fdb(self, vni: int | None = None, mac: str | None = None) -> list[v1.FdbEntry]:
        """Remote MAC addresses and their VTEPs."""
        request = v1.ListFdbRequest(vni=vni, mac=mac)
        return list(self.stub.ListFdb(request, timeout=self._timeout))

    def routes(self, vtep: str | None = None) -> list[v1.Route]:
        """Routes to VTEPs."""
        return list(self.stub.ListRoutes(v1.ListRoutesRequest(vtep=vtep), timeout=self._timeout))

    def peers(self) -> list[v1.Peer]:
        """Remote VTEPs with their traffic."""
        return list(self.stub.ListPeers(v1.ListPeersRequest(), timeout=self._timeout))

    def paths(self, vtep: str | None = None) -> list[v1.VtepPaths]:
        """What probes know about the paths to remote VTEPs."""
        return list(self.stub.ListPaths(v1.ListPathsRequest(vtep=vtep), timeout=self._timeout))

    def queue_pairs(
        self, vni: int | None = None, *, number: int | None = None, gone: bool = False
    ) -> list[v1.QueuePair]:
        """Queue pairs that qp-pin has placed; with ``gone`` also those of the last hour that it has
        forgotten, with their last path."""
        request = v1.ListQueuePairsRequest(vni=vni, queue_pair=number, gone=gone)
        return list(self.stub.ListQueuePairs(request, timeout=self._timeout))

    def counters(self) -> v1.Counters:
        """All counters."""
        return self.stub.GetCounters(v1.GetCountersRequest(), timeout=self._timeout)

    def events(self, *, follow: bool = False, after: int = 0) -> Iterator[v1.Event]:
        """The remembered events; with ``follow`` also those to come, without end."""
        request = v1.WatchEventsRequest(follow=follow, after=after)
        return iter(self.stub.WatchEvents(request, timeout=None if follow else self._timeout))

    def explain(
        self,
        vni: int,
        *,
        source: str | None = None,
        destination: str | None = None,
        queue_pair: int | None = None,
        source_port: int | None = None,
        destination_port: int | None = None,
        protocol: int | None = None,
        source_mac: str | None = None,
        destination_mac: str | None = None,
        payload: int | None = None,
    ) -> v1.Explanation:
        """Where a flow goes, by the code and tables that forward. ``source`` and ``destination``
        are IP addresses. With ``queue_pair`` it is RoCE."""
        flow = v1.Flow(
            source=source,
            destination=destination,
            queue_pair=queue_pair,
            source_port=source_port,
            destination_port=destination_port,
            protocol=protocol,
            source_mac=source_mac,
            destination_mac=destination_mac,
            payload=payload,
        )
        return self.stub.Explain(v1.ExplainRequest(vni=vni, flow=flow), timeout=self._timeout)

    def set_policy(
        self,
        vni: int,
        policy: str | None = None,
        *,
        bins: int | None = None,
        source_ports: str | None = None,
    ) -> v1.Vni:
        """Changes the policy of a VNI until the configuration is read again."""
        request = v1.SetPolicyRequest(vni=vni, policy=policy, bins=bins, source_ports=source_ports)
        return self.stub.SetPolicy(request, timeout=self._timeout)
