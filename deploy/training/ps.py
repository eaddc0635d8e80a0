"""A parameter server of Ray, on the hosts of `lab run`: the server on the first, workers on others.

In each step, the workers get the parameters, compute gradients of batches of their own, and the
server adds their mean. The process of rank 0 is the driver, and writes a line of JSON for each step.
`mismatches` counts the workers that got other parameters than the server has.
"""

import argparse
import hashlib
import json
import math
import os
import socket
import subprocess
import sys
import time

import ray
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import model as training

GCS_PORT = 6379
TURN_PORT = 6378


def start_node(rank: int, addresses: list[str], size: int) -> None:
    """Starts Ray's processes of this host."""
    own = f"--node-ip-address={addresses[rank]}"
    # The parameters, the gradients of all workers, and those of the step before.
    store = max(100_000_000, 2 * size * (len(addresses) + 1) if rank == 0 else 4 * size)
    if rank == 0:
        role = ["--head", f"--port={GCS_PORT}", f"--temp-dir={os.getcwd()}"]
        role.append("--include-dashboard=false")
    else:
        role = [f"--address={addresses[0]}:{GCS_PORT}"]
    resources = json.dumps({f"rank{rank}": 1})
    command = [os.path.join(os.path.dirname(sys.executable), "ray"), "start", own, *role]
    command += ["--num-cpus=1", f"--resources={resources}", f"--object-store-memory={store}"]
    command += ["--disable-usage-stats"]
    # What it says is of use only if it fails.
    with open("ray-start", "w+", encoding="utf-8") as said:
        if subprocess.run(command, stdout=said, stderr=said, check=False).returncode != 0:
            said.seek(0)
            raise RuntimeError(f"Ray did not start: {said.read()}")


def start_nodes(addresses: list[str], size: int) -> list[socket.socket]:
    """Starts the node of the driver, and lets the others start one after the other: files in
    Ray's folder have numbers, and nodes that start together take the same ones."""
    start_node(0, addresses, size)
    with socket.create_server((addresses[0], TURN_PORT)) as server:
        peers = [server.accept()[0] for _ in addresses[1:]]
    for peer in sorted(peers, key=lambda peer: peer.recv(1)):
        peer.sendall(b"+")
        if not peer.recv(1):
            raise RuntimeError("a node did not start")
    return peers


def serve(rank: int, addresses: list[str], size: int) -> None:
    """Starts the node of this host when it is its turn, and waits until the driver has ended."""
    while True:
        try:
            driver = socket.create_connection((addresses[0], TURN_PORT))
            break
        except OSError:
            time.sleep(0.1)
    driver.sendall(bytes([rank]))
    if driver.recv(1):
        start_node(rank, addresses, size)
        driver.sendall(b"+")
        driver.recv(1)


class Server:
    """The parameters."""

    def __init__(self, size: int, seed: int):
        torch.set_num_threads(1)
        self.model = training.build(size, seed)
        self.vector = parameters_to_vector(self.model.parameters()).detach()

    def parameters(self):
        return self.vector.numpy()

    def add(self, *gradients):
        """A step with the mean of all gradients. Returns the new parameters."""
        total = torch.zeros_like(self.vector)
        for each in gradients:
            total += torch.from_numpy(each.copy())
        self.vector = self.vector - training.RATE / len(gradients) * total
        return self.vector.numpy()


class Worker:
    """A worker, with batches of its own."""

    def __init__(self, size: int, seed: int, number: int):
        torch.set_num_threads(1)
        self.model = training.build(size, seed)
        self.points = training.Points(seed, number)
        self.loss = math.nan

    def gradients(self, parameters):
        vector_to_parameters(torch.from_numpy(parameters.copy()), self.model.parameters())
        inputs, classes = self.points.batch()
        self.model.zero_grad()
        loss = torch.nn.functional.cross_entropy(self.model(inputs), classes)
        loss.backward()
        self.loss = loss.item()
        return parameters_to_vector([each.grad for each in self.model.parameters()]).numpy()

    def last_loss(self) -> float:
        return self.loss

    def digest(self, parameters) -> str:
        return hashlib.sha256(parameters.tobytes()).hexdigest()


def drive(addresses: list[str], size: int, seed: int, steps: int) -> None:
    """Trains, and writes a line for each step."""

    def on(rank: int, kind: type):
        return ray.remote(num_cpus=0, resources={f"rank{rank}": 1})(kind)

    server = on(0, Server).remote(size, seed)
    workers = [on(rank, Worker).remote(size, seed, rank) for rank in range(1, len(addresses))]
    parameters = server.parameters.remote()
    gradients = training.size(training.build(size, seed))
    # Workers are ready when they have answered once.
    ray.get([worker.last_loss.remote() for worker in workers])
    ray.wait([parameters], fetch_local=False)
    lines = []
    for step in range(steps):
        start = time.perf_counter()
        parameters = server.add.remote(*[worker.gradients.remote(parameters) for worker in workers])
        ray.wait([parameters], fetch_local=False)
        seconds = time.perf_counter() - start
        losses = ray.get([worker.last_loss.remote() for worker in workers])
        lines.append(
            {
                "step": step,
                "workers": len(workers),
                "bytes": gradients,
                "seconds": seconds,
                # The rate of the server's link, as `lab workload` computes it.
                "bus_bandwidth": gradients * 8 * 2 * len(workers) / seconds,
                "loss": sum(losses) / len(losses),
            }
        )
    own = hashlib.sha256(ray.get(parameters).tobytes()).hexdigest()
    seen = ray.get([worker.digest.remote(parameters) for worker in workers])
    mismatches = sum(each != own for each in seen)
    for line in lines:
        wrong = mismatches if math.isfinite(line["loss"]) else len(workers)
        print(json.dumps(line | {"mismatches": wrong, "parameters": own}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    own = os.environ
    rank, seed, size = (int(own[name]) for name in ("LAB_RANK", "LAB_SEED", "LAB_BYTES"))
    addresses = own["LAB_ADDRESSES"].split(",")
    # Other programs of the machine need memory, too: that is no reason to kill workers.
    own["RAY_memory_monitor_refresh_ms"] = "0"
    if rank > 0:
        return serve(rank, addresses, size)
    # The connections to the others are open as long as the driver runs.
    peers = start_nodes(addresses, size)
    ray.init(
        address=f"{addresses[0]}:{GCS_PORT}", log_to_driver=False, _node_ip_address=addresses[0]
    )
    drive(addresses, size, seed, options.steps)
    for peer in peers:
        peer.close()


if __name__ == "__main__":
    main()
