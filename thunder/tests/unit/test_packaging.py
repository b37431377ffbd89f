"""What the distribution promises: version, dependencies, extras, entry point, typing marker."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

from thunder import __about__

ROOT = Path(__file__).resolve().parents[3]
DISTRIBUTION = "lightning-thunder"
BASE = {"torch", "numpy", "optree", "looseversion", "opt_einsum"}
EXTRAS = {"test", "docs", "notebooks", "viz"}


def normalized(name: str) -> str:
    """The spelling under which `opt_einsum`, `opt-einsum` and `Opt.Einsum` are one distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The distribution that a requirement such as `torch>=2.9` asks for."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, requirement
    return normalized(match.group())


def requirements(name: str) -> list[str]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{DISTRIBUTION} is not installed: there is no metadata to check")


def test_version_is_pep_440():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|(a|b|rc)\d+)?", __about__.__version__)


def test_about_names_are_strings():
    assert all(isinstance(getattr(__about__, name), str) for name in __about__.__all__)


def test_changelog_has_the_version():
    assert __about__.__version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_py_typed_is_beside_the_package():
    assert (Path(__about__.__file__).parent / "py.typed").is_file()


def test_base_requirements_are_the_five():
    assert {name_of(line) for line in requirements("base")} == {normalized(name) for name in BASE}
    assert "torch>=2.9" in requirements("base")


def test_torch_pin_comes_first():
    for name in ("test", "docs", "notebooks"):
        assert requirements(name)[0] == "torch==2.13.0", name


def test_build_environment_needs_no_torch():
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert {name_of(line) for line in project["build-system"]["requires"]} == {"setuptools"}


def test_installed_version(distribution):
    assert distribution.version == __about__.__version__


def test_installed_requirements(distribution):
    base = {name_of(line) for line in distribution.requires or [] if "extra ==" not in line}
    assert base == {normalized(name) for name in BASE}
    assert distribution.metadata["Requires-Python"] == ">=3.10"


def test_installed_extras(distribution):
    assert set(distribution.metadata.get_all("Provides-Extra")) == EXTRAS


def test_dynamo_backend_entry_point(distribution):
    (entry_point,) = distribution.entry_points.select(group="torch_dynamo_backends")
    assert (entry_point.name, entry_point.value) == ("thunder", "thunder.dynamo:thunder_backend")
    assert callable(entry_point.load())
