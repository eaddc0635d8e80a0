"""What the training programs train: a classifier of random points, of any size."""

import hashlib
import math

import torch

INPUTS = 64
CLASSES = 10
BATCH = 32
RATE = 0.05


def build(size: int, seed: int) -> torch.nn.Module:
    """A classifier with at most `size` bytes of parameters, the same for the same seed."""
    # Parameters of width w: 2 w² + (INPUTS + CLASSES + 3) w + CLASSES.
    linear = INPUTS + CLASSES + 3
    room = max(size // 4 - CLASSES, 0)
    width = max(int((math.sqrt(linear**2 + 8 * room) - linear) / 4), 1)
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, CLASSES),
    )


class Points:
    """The batches of one worker. A fixed linear map gives each point its class."""

    def __init__(self, seed: int, worker: int):
        self.generator = torch.Generator().manual_seed((seed << 8 ^ worker) & (1 << 63) - 1)
        self.teacher = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(1))

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        points = torch.randn(BATCH, INPUTS, generator=self.generator)
        return points, (points @ self.teacher).argmax(1)


def size(model: torch.nn.Module) -> int:
    """Bytes of the parameters, and so of the gradients of a batch."""
    return sum(each.numel() * each.element_size() for each in model.parameters())


def digest(model: torch.nn.Module) -> bytes:
    """The SHA-256 of all parameters."""
    total = hashlib.sha256()
    for each in model.parameters():
        total.update(each.detach().numpy().tobytes())
    return total.digest()
