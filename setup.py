"""Reads the version and the requirement lists from the files that own them; the rest is in pyproject.toml."""

import ast
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
EXTRAS = ("test", "docs", "notebooks", "viz")


def read_about() -> dict[str, str]:
    """The string constants of `thunder/__about__.py`, read without importing thunder (which needs torch)."""
    tree = ast.parse((ROOT / "thunder" / "__about__.py").read_text(encoding="utf-8"))
    return {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }


def read_requirements(name: str) -> list[str]:
    """The requirements in `requirements/<name>.txt`, without comments and blank lines."""
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    stripped = (line.partition("#")[0].strip() for line in lines)
    return [line for line in stripped if line]


about = read_about()

setup(
    version=about["__version__"],
    install_requires=read_requirements("base"),
    extras_require={name: read_requirements(name) for name in EXTRAS},
    packages=find_packages(include=["thunder", "thunder.*"], exclude=["thunder.tests", "thunder.tests.*"]),
    package_data={"thunder": ["py.typed"]},
    # The manifest names thunder/tests for the source distribution; this keeps it out of the wheel.
    include_package_data=False,
)
