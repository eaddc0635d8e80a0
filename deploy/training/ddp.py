"""A worker of PyTorch's DistributedDataParallel, one on each host of `lab run`.

Gradients go through Gloo, or with --roce through the RoCE endpoints of `lab allreduce`. The worker
of rank 0 writes a line of JSON for each step. `mismatches` counts the workers whose parameters
differ from its own at the end.
"""

import argparse
import json
import math
import os
import time

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import model as training
import roce

PORT = 29500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--roce", nargs=argparse.REMAINDER, help="options of 'lab allreduce'")
    options = parser.parse_args()
    own = os.environ
    rank, seed, size = (int(own[name]) for name in ("LAB_RANK", "LAB_SEED", "LAB_BYTES"))
    addresses = own["LAB_ADDRESSES"].split(",")
    # The machine's cores are shared by all workers.
    torch.set_num_threads(1)
    own["GLOO_SOCKET_IFNAME"] = own["LAB_INTERFACE"]
    torch.distributed.init_process_group(
        "gloo", f"tcp://{addresses[0]}:{PORT}", rank=rank, world_size=len(addresses)
    )
    module = training.build(size, seed)
    gradients = training.size(module)
    # The buckets share the memory of the gradients: a large model fits twice.
    parallel = DistributedDataParallel(module, gradient_as_bucket_view=True)
    endpoint = None
    if options.roce is not None:
        endpoint = roce.Endpoint(gradients, options.roce)
        torch.distributed.barrier()
        parallel.register_comm_hook(endpoint, roce.average)
    steps = train(parallel, training.Points(seed, rank), options.steps)

    sums = torch.frombuffer(bytearray(training.digest(module)), dtype=torch.uint8)
    all_sums = [torch.empty_like(sums) for _ in addresses]
    torch.distributed.all_gather(all_sums, sums)
    if rank == 0:
        mismatches = sum(not torch.equal(each, sums) for each in all_sums)
        share = 2 * (len(addresses) - 1) / len(addresses)
        for step, (seconds, loss) in enumerate(steps):
            line = {
                "step": step,
                "workers": len(addresses),
                "bytes": gradients,
                "seconds": seconds,
                "bus_bandwidth": gradients * 8 * share / seconds,
                "loss": loss,
                "mismatches": mismatches if math.isfinite(loss) else len(addresses),
                "parameters": bytes(sums.tolist()).hex(),
            }
            print(json.dumps(line), flush=True)
    # The others may still need this host's acknowledgements.
    torch.distributed.barrier()
    if endpoint:
        endpoint.close()
    # At a regular exit, PyTorch 1.13 sometimes ends with a signal, because threads still run.
    os._exit(0)


def train(parallel: torch.nn.Module, points: training.Points, steps: int) -> list:
    """The time and the loss of each step. A step begins when all workers do."""
    optimizer = torch.optim.SGD(parallel.parameters(), lr=training.RATE)
    criterion = torch.nn.CrossEntropyLoss()
    done = []
    for _ in range(steps):
        inputs, classes = points.batch()
        torch.distributed.barrier()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(parallel(inputs), classes)
        loss.backward()
        optimizer.step()
        done.append((time.perf_counter() - start, loss.item()))
    return done


if __name__ == "__main__":
    main()
