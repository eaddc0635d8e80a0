"""Leaf and Lab against a server and a program of the test."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import vtepd
from vtepd import Lab, LabError, Leaf, LeafError, namespace, read_summary
from vtepd.v1 import vtepd_pb2 as v1
from vtepd.v1 import vtepd_pb2_grpc

NAME = f"vtepd-test-{os.getpid()}"


class Service(vtepd_pb2_grpc.VtepdServicer):
    def GetStatus(self, request, context):
        return v1.Status(version="test", pid=os.getpid())

    def ListVnis(self, request, context):
        numbers = [10, 20] if not request.HasField("vni") else [request.vni]
        return (v1.Vni(vni=number) for number in numbers)

    def Explain(self, request, context):
        if not request.flow.HasField("queue_pair"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no queue pair")
        port = 49152 + request.flow.queue_pair % 1000
        return v1.Explanation(vni=request.vni, copies=[v1.Copy(source_port=port)])


def serve(address: str) -> grpc.Server:
    server = grpc.server(ThreadPoolExecutor(2))
    vtepd_pb2_grpc.add_VtepdServicer_to_server(Service(), server)
    server.add_insecure_port(address)
    server.start()
    return server


@pytest.fixture
def socket():
    server = serve(f"unix-abstract:{NAME}")
    yield f"@{NAME}"
    server.stop(None)


def test_requests_and_their_answers(socket):
    with Leaf(socket=socket) as leaf:
        assert leaf.status().version == "test"
        assert [row.vni for row in leaf.vnis()] == [10, 20]
        assert [row.vni for row in leaf.vnis(30)] == [30]
        found = leaf.explain(10, source="10.0.0.1", destination="10.0.0.2", queue_pair=17)
        assert (found.vni, found.copies[0].source_port) == (10, 49169)
        for error in (grpc.RpcError, LeafError):
            with pytest.raises(error, match="^no queue pair$"):
                leaf.explain(10)
        assert leaf.stub.GetStatus(v1.GetStatusRequest()).version == "test"


def test_an_absent_field_is_not_zero(socket):
    with Leaf(socket=socket) as leaf:
        assert leaf.explain(1, queue_pair=0).copies[0].source_port == 49152


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(LeafError, match="no vtepd listens on @nobody in this namespace: start"):
        Leaf(socket="@nobody")
    with pytest.raises(LeafError, match="no network namespace 'no-such-leaf'.*ip netns"):
        Leaf("no-such-leaf")
    with pytest.raises(LeafError, match="--api-listen"):
        Leaf(socket=str(tmp_path / "missing"))
    with pytest.raises(LeafError, match="not by both"):
        Leaf("leaf1", pid=1)


def test_a_name_is_found_in_labs(tmp_path, monkeypatch):
    monkeypatch.setattr(namespace, "RUN_NETNS", tmp_path)
    for name in ["lab-a-leaf1", "lab-a-vtepd", "clab-b-leaf2", "other-leaf2", "leaf3", "lab-a-leaf3"]:
        (tmp_path / name).touch()
    assert namespace.find("leaf1").name == "lab-a-leaf1"
    assert namespace.find("leaf2").name == "clab-b-leaf2"
    assert namespace.find("leaf3").name == "leaf3"
    (tmp_path / "lab-b-leaf1").touch()
    with pytest.raises(LookupError, match="lab-a-leaf1, lab-b-leaf1"):
        namespace.find("leaf1")
    assert namespace.find("leaf1", "b").name == "lab-b-leaf1"
    with pytest.raises(LookupError, match="of the lab 'c'"):
        namespace.find("leaf1", "c")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_namespace():
    code = "import sys, test_leaf as t; server = t.serve('unix-abstract:there'); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent,
    )
    try:
        process.stdout.readline()
        with pytest.raises(LeafError):
            Leaf(socket="@there")
        with Leaf(pid=process.pid, socket="@there") as leaf:
            assert leaf.status().pid == process.pid
            assert [row.vni for row in leaf.vnis()] == [10, 20]
    finally:
        process.communicate()


def program(directory: Path, text: str) -> str:
    path = directory / "lab"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_lab_runs_its_program(tmp_path):
    lab = Lab(program(tmp_path, 'echo "[\\"$*\\"]"'), name="mine")
    expected = ["path --name mine --from host1 --to host2 --qp 17 --output json"]
    assert lab.path("host1", "host2", 17) == expected
    broken = Lab(program(tmp_path, "echo 'lab: no fabric' >&2; exit 1"))
    with pytest.raises(LabError, match="lab: no fabric"):
        broken("status")


def test_a_summary_has_numbers(tmp_path):
    (tmp_path / "summary.csv").write_text("dataplane,mmr,runs\nqp-hash,1.25,20\n")
    assert read_summary(tmp_path) == [{"dataplane": "qp-hash", "mmr": 1.25, "runs": 20}]


def test_plans_are_rows(tmp_path, monkeypatch):
    memory = {"parameters": 2.0, "activations": 3.0, "limit": 10.0}
    iteration = {"seconds": 4.0, "across": 1.0, "recompute": 0.5, "memory": memory}
    found = {
        "plans": [{"plan": {"tensor": 8, "recompute": "full"}, "iteration": iteration}],
        "baseline": {"seconds": 6.0},
    }
    (tmp_path / "found.json").write_text(json.dumps(found))
    monkeypatch.setenv("LAB", program(tmp_path, f"cat {tmp_path}/found.json"))
    row = {"tensor": 8, "recompute": "full", "seconds": 4.0, "memory": 5.0}
    row |= {"across-seconds": 1.0, "recompute-seconds": 0.5}
    assert vtepd.plan("job.toml", "--top", 1) == [{**row, "speed-up": 1.5}]
