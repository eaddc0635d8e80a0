"""Client of vtepd and of its lab.

>>> from vtepd import Leaf
>>> with Leaf("leaf1") as leaf:
...     print([vni.vni for vni in leaf.vnis()])
"""

from .leaf import Leaf, LeafError
from .lab import Lab, LabError, plan, read_summary

__all__ = ["Lab", "LabError", "Leaf", "LeafError", "plan", "read_summary"]
