"""Sums gradients over RoCE: a communication hook of PyTorch's DistributedDataParallel.

`lab allreduce` runs beside the worker as its child. Both share a file without a name, which no
other process can open, and speak through pipes: a line with a number of bytes asks for the sum of
so many at the beginning of the file, and a line "done" says that it is there.
"""

import mmap
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed


class Endpoint:
    """The RoCE endpoint of this host, for vectors of at most `size` bytes."""

    def __init__(self, size: int, options: list[str]):
        own = os.environ
        memory = os.memfd_create("gradients")
        os.ftruncate(memory, size)
        self.shared = torch.frombuffer(mmap.mmap(memory, size), dtype=torch.float32)
        command = [own["LAB"], "allreduce", "--memory", f"/proc/self/fd/{memory}"]
        for option, name in [
            ("--rank", "LAB_RANK"),
            ("--addresses", "LAB_ADDRESSES"),
            ("--interface", "LAB_INTERFACE"),
            ("--queue-pairs", "LAB_QUEUE_PAIRS"),
            ("--inner-port", "LAB_SOURCE_PORT"),
            ("--seed", "LAB_SEED"),
        ]:
            command += [option, own[name]]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command + options, stdin=pipe, stdout=pipe, text=True, bufsize=1, pass_fds=[memory]
        )
        os.close(memory)
        # Buckets are summed one after the other, in the order in which DDP gives them.
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.expect("ready")

    def expect(self, answer: str) -> None:
        if self.process.stdout.readline().strip() != answer:
            # It has said why. DDP would only say that an error is no tensor.
            self.process.wait()
            os._exit(1)

    def sum(self, vector: torch.Tensor) -> torch.Tensor:
        """Replaces a vector by its sum over all hosts."""
        shared = self.shared[: vector.numel()]
        shared.copy_(vector)
        self.process.stdin.write(f"{vector.numel() * vector.element_size()}\n")
        self.expect("done")
        return vector.copy_(shared)

    def close(self) -> None:
        self.thread.shutdown()
        self.process.stdin.close()
        self.process.wait()


def average(
    endpoint: Endpoint, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The hook: the mean of a bucket over all hosts, while the backward pass goes on."""
    future = torch.futures.Future()

    def work() -> None:
        try:
            # Divided first, as DDP does without a hook.
            mine = bucket.buffer().div_(torch.distributed.get_world_size())
            future.set_result(endpoint.sum(mine))
        except Exception as error:  # The worker raises it.
            future.set_exception(error)

    endpoint.thread.submit(work)
    return future
