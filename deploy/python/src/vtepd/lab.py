"""The program ``lab``, and the results of its experiments."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any


# The parts of the time of a plan. The plan itself has a key ``recompute``, too.
_PARTS = ("compute", "recompute", "inside", "across", "bubble", "optimizer")


class LabError(Exception):
    """A command of lab failed. The message is its own."""


def _value(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def read_summary(directory: str | Path) -> list[dict[str, str | int | float]]:
    """The rows of an experiment's ``summary.csv``: one for each point, dataplane and tier."""
    with (Path(directory) / "summary.csv").open(newline="") as file:
        return [
            {name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)
        ]


class Lab:
    """Runs ``lab``. ``program`` is its path; the default is ``$LAB``, or ``lab`` of the path."""

    def __init__(self, program: str | None = None, name: str | None = None) -> None:
        self.program = program or os.environ.get("LAB", "lab")
        self.name = name

    def __call__(self, *arguments: str | Path | int | float) -> Any:
        """Runs a command and returns its JSON; ``None`` where it prints none."""
        words = [self.program, *map(str, arguments), "--output", "json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(done.stderr.strip() or f"{' '.join(words)}: {done.returncode}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def path(self, source: str, destination: str, queue_pair: int) -> Any:
        """The path of a queue pair between two hosts, router by router."""
        named = ["--name", self.name] if self.name else []
        flow = ["--from", source, "--to", destination, "--qp", queue_pair]
        return self("path", *named, *flow)

    def run(
        self, experiment: str | Path, out: str | Path, *options: str
    ) -> list[dict[str, str | int | float]]:
        """Runs an experiment and returns the rows of its summary."""
        self("run", experiment, "--out", out, *options)
        return read_summary(out)

    def plan(self, job: str | Path, *options: str | Path | int) -> list[dict[str, Any]]:
        """The fastest plans of a job, a row each: the plan, its time in seconds and its parts.

        Parts of the time are named ``compute-seconds``, ``recompute-seconds`` and so on.
        """
        found = self("plan", job, *options)
        baseline = found["baseline"]
        rows = []
        for ranked in found["plans"]:
            row = dict(ranked["plan"])
            for name, value in ranked["iteration"].items():
                row[f"{name}-seconds" if name in _PARTS else name] = value
            row["memory"] = sum(
                value for name, value in ranked["iteration"]["memory"].items() if name != "limit"
            )
            row["speed-up"] = baseline["seconds"] / row["seconds"] if baseline else None
            rows.append(row)
        return rows


def plan(job: str | Path, *options: str | Path | int) -> list[dict[str, Any]]:
    """:meth:`Lab.plan` of the default ``lab``. ``pandas.DataFrame`` takes the rows."""
    return Lab().plan(job, *options)
