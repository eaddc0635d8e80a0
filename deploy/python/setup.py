"""Generates the messages from the schema when the package is built.

The schema is that of the repository, and a source distribution carries a copy.
"""

import shutil
from importlib.metadata import version
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
COPY = HERE / "proto"
SCHEMAS = COPY if COPY.exists() else HERE.parents[1] / "proto"


class Build(build_py):
    def run(self) -> None:
        super().run()
        from grpc_tools import protoc

        into = HERE / "src" if self.editable_mode else Path(self.build_lib)
        into.mkdir(parents=True, exist_ok=True)
        outputs = [f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")]
        arguments = ["protoc", f"-I{SCHEMAS}", *outputs, "vtepd/v1/vtepd.proto"]
        if protoc.main(arguments) != 0:
            raise RuntimeError("the schema cannot be compiled")


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree(SCHEMAS / "vtepd", Path(base_dir) / "proto" / "vtepd")


setup(
    cmdclass={"build_py": Build, "sdist": Sdist},
    # Generated code works with the runtime that it was generated for, and with later ones.
    install_requires=[
        f"grpcio>={version('grpcio-tools')}",
        f"protobuf>={version('protobuf')}",
    ],
)
