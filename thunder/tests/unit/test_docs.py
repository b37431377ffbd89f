"""README.md and docs/: their code runs, their tables and traces are those of the code."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import warnings
from pathlib import Path

import pytest
import torch

import thunder
from thunder import __main__, extend
from thunder.core import errors

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WITH_CODE = [page for page in PAGES if any(kind == "python" for kind, _ in BLOCK.findall(page.read_text()))]

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="an installed wheel has no documentation")


def run_page(page: Path) -> tuple[dict, str]:
    """Runs a page's python blocks as one program; gives its names and what it printed."""
    namespace: dict = {"__name__": page.stem}
    printed = io.StringIO()
    for number, (kind, code) in enumerate(BLOCK.findall(page.read_text())):
        if kind != "python":
            continue
        filename = f"{page.stem}_{number}.py" if page.name != "README.md" else "example.py"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        with contextlib.redirect_stdout(printed):
            exec(compile(code, filename, "exec"), namespace)
    return namespace, printed.getvalue()


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs(page):
    defaults = extend.get_default_executors()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_page(page)
    assert extend.get_default_executors() == defaults


def test_the_pages_that_must_have_code_have_it():
    names = {page.name for page in WITH_CODE}
    needed = {"README.md", "quickstart.md", "read_a_trace.md", "add_an_op.md", "add_a_pass.md", "add_an_executor.md"}
    assert needed <= names


def program(text: str) -> list[str]:
    """The lines of a printed trace that do not change from run to run."""
    kept = (line.rstrip() for line in text.splitlines() if not line.startswith("# Constructed by"))
    return [line for line in kept if line]


def test_the_traces_in_the_readme_are_what_is_printed():
    """EXPECTTEST_ACCEPT=1 puts what is printed now into the page."""
    page = ROOT / "README.md"
    text = page.read_text()
    shown = [code for kind, code in BLOCK.findall(text) if kind == "text"]
    printed = re.split(r"(?m)^# Constructed by .*\n", run_page(page)[1])[1:]
    assert len(shown) == len(printed) == 2
    if os.environ.get("EXPECTTEST_ACCEPT"):
        for old, new in zip(shown, printed):
            text = text.replace(old, new.strip("\n") + "\n")
        page.write_text(text)
    else:
        assert [program(code) for code in shown] == [program(code) for code in printed]


def test_every_error_has_a_section():
    text = (ROOT / "docs" / "errors.md").read_text()
    classes = [n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, errors.ThunderError)]
    sections = set(re.findall(r"^## (\w+)$", text, re.MULTILINE))
    assert {n for n in classes if not n.startswith("_")} <= sections
    for name in classes:
        section = text.split(f"## {name}\n")[1].split("\n## ")[0]
        named = re.search(r"\*is an? (\w+)\.\*", section)
        assert name == "ThunderError" or named[1] in {base.__name__ for base in vars(errors)[name].__mro__}, name


def test_environment_page_is_up_to_date():
    page = (ROOT / "docs" / "environment.md").read_text()
    assert page == __main__.options_page(), "write it anew: python -m thunder options > docs/environment.md"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page}: {target}"


def test_the_readme_opens_with_the_two_commands():
    head = (ROOT / "README.md").read_text()[:400]
    assert head.index("make demo") < head.index("make test")
    assert torch.is_grad_enabled()
    assert thunder.__version__
