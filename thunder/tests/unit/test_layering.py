"""The layout rules, checked by reading the source: layers, imports at module level, façades and sizes.

Nothing of thunder is imported, so these tests work on whatever files exist. Each failure lists every violation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2]

# Lowest first. A name stands for the module or package and all below it; the longest matching name wins.
LAYERS: dict[str, tuple[str, ...]] = {
    "L1 base": (
        "thunder.__about__",
        "thunder.core.baseutils",
        "thunder.core.errors",
        "thunder.core.options",
        "thunder.core.log",
        "thunder.core.dtypes",
        "thunder.core.devices",
        "thunder.core.pytree",
        "thunder.core.torch_compat",
        "thunder.core.inductor_compat",
        "thunder.core.dynamo_compat",
        "thunder.core.dynamo_messages",
        "thunder.core.codeutils",
        "thunder.core.compile_data",
        "thunder.core.profile",
    ),
    "L2 IR": (
        "thunder.core.origin",
        "thunder.core.proxies",
        "thunder.core.symbol",
        "thunder.core.trace",
        "thunder.core.printer",
        "thunder.core.codegen",
        "thunder.core.verify",
        "thunder.core.passes",
        "thunder.core.dataflow",
        "thunder.core.patterns",
        "thunder.core.rewrite",
        "thunder.core.sizes",
        "thunder.core.tracing",
        "thunder.core.promotion",
        "thunder.core.dims",
        "thunder.core.langctxs",
        "thunder.core.eager",
    ),
    "L3 operators": (
        "thunder.core.rules",
        "thunder.core.prims",
        "thunder.clang",
        "thunder.torch",
        "thunder.numpy",
    ),
    "L4 passes": (
        "thunder.core.functionalization",
        "thunder.core.alias_analysis",
        "thunder.core.update_aliases",
        "thunder.core.overlap",
        "thunder.core.transform_base",
        "thunder.core.transforms",
        "thunder.distributed",
    ),
    "L5 executors": (
        "thunder.extend",
        "thunder.executors",
        "thunder.transforms",
    ),
    "L5b driver": (
        "thunder.pipeline",
        "thunder.program",
        "thunder.runtime",
    ),
    "L6 front ends": (
        "thunder.frontend",
        "thunder.dynamo",
    ),
    "L7 user": (
        "thunder",  # thunder/__init__.py itself, nothing below it
        "thunder.__main__",
        "thunder.introspection",
        "thunder.jit",
        "thunder.recipes",
        "thunder.plugins",
        "thunder.examine",
        "thunder.dev_utils",
        "thunder.benchmarks",
    ),
}

# Modules that only re-export, under a path that users import, what lives elsewhere: they may import from any layer,
# hold no logic, and are not imported by the library. A package here means its __init__.py.
FACADES: frozenset[str] = frozenset(
    {
        "thunder.common",
        "thunder.core",
        "thunder.core.jit_ext",
        "thunder.core.module",
        "thunder.core.recipe",
        "thunder.core.rematerialization",
        "thunder.core.trace_interpreter",
        "thunder.core.transform_common",
        "thunder.core.utils",
        "thunder.core.vjp_utils",
        "thunder.executors.data_dependent_partition",
        "thunder.executors.torch_compile",
        "thunder.torch.custom_op",
    }
)

NAMED = frozenset(name for names in LAYERS.values() for name in names) | FACADES

# Generated tables, exempt from the sizes: paths relative to the package.
GENERATED: frozenset[str] = frozenset()

MAX_INIT_LINES = 150
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, path and syntax tree."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_test(self) -> bool:
        return self.name == "thunder.tests" or self.name.startswith("thunder.tests.")

    @property
    def line_count(self) -> int:
        return len(self.source.splitlines())


@dataclass(frozen=True)
class Import:
    """One module that another one imports, with the line that does so."""

    target: str
    line: int


def read_modules(package: Path) -> dict[str, Module]:
    """Every module below `package` (a folder that stands for `thunder`), by dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = ("thunder", *path.relative_to(package).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        source = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, source, ast.parse(source, filename=str(path)))
    return modules


def layer_of(name: str) -> str | None:
    """The layer whose table has the longest name that `name` equals or lies below; None if there is none."""
    best_layer, best_length = None, 0
    for layer, prefixes in LAYERS.items():
        for prefix in prefixes:
            is_match = name == prefix or (prefix != "thunder" and name.startswith(prefix + "."))
            if is_match and len(prefix) > best_length:
                best_layer, best_length = layer, len(prefix)
    return best_layer


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    """The dotted name between `from` and `import`, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_dynamic_import(node: ast.AST) -> bool:
    """Whether `node` is `import_module("…")` or `__import__("…")` with a literal name."""
    if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    return called in {"import_module", "__import__"} and isinstance(node.args[0].value, str)


def thunder_imports(module: Module, known: dict[str, Module]) -> Iterator[Import]:
    """What `module` imports of thunder. `from package import name` counts as `package.name` where that is a module.

    A module is what exists as a file or is named in the tables above. Imports under TYPE_CHECKING count too: a layer
    that needs a higher layer's types is not below it.
    """
    for node in ast.walk(module.tree):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(module, node)
            joined = [f"{base}.{alias.name}" for alias in node.names]
            targets = [full if full in known or full in NAMED else base for full in joined]
        elif is_dynamic_import(node):
            assert isinstance(node, ast.Call)
            assert isinstance(node.args[0], ast.Constant)
            targets = [node.args[0].value]
        for target in dict.fromkeys(targets):
            if target == "thunder" or target.startswith("thunder."):
                yield Import(target, node.lineno)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in `tree`, methods and nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def library(modules: dict[str, Module]) -> Iterator[Module]:
    """The modules that are not tests."""
    return (module for module in modules.values() if not module.is_test)


def unplaced_modules(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.path}:1: {module.name} has no layer: add it to LAYERS (or to FACADES, if it only re-exports)"
        for module in library(modules)
        if module.name not in FACADES and layer_of(module.name) is None
    ]


def upward_imports(modules: dict[str, Module]) -> list[str]:
    order = list(LAYERS)
    violations = []
    for module in library(modules):
        own = layer_of(module.name)
        if module.name in FACADES or own is None:
            continue
        for imported in thunder_imports(module, modules):
            other = layer_of(imported.target)
            if imported.target in FACADES or other is None or order.index(other) <= order.index(own):
                continue
            edge = f"{module.name} ({own}) imports {imported.target} ({other}), a layer above it"
            violations.append(f"{module.path}:{imported.line}: {edge}")
    return violations


def imports_of_facades(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.path}:{imported.line}: {module.name} imports the façade {imported.target}: import what it re-exports"
        for module in library(modules)
        if module.name not in FACADES and layer_of(module.name) != "L7 user"
        for imported in thunder_imports(module, modules)
        if imported.target in FACADES
    ]


def imports_of_tests(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.path}:{imported.line}: {module.name} imports {imported.target}, which is not in the wheel"
        for module in library(modules)
        for imported in thunder_imports(module, modules)
        if imported.target == "thunder.tests" or imported.target.startswith("thunder.tests.")
    ]


def is_reexport(node: ast.stmt) -> bool:
    """Whether `node` may stand in a façade: an import, a docstring or `__all__ = …`."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.Import | ast.ImportFrom)


def facades_with_logic(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.path}:{node.lineno}: {module.name} is a façade, yet has logic"
        for module in library(modules)
        if module.name in FACADES
        for node in module.tree.body
        if not is_reexport(node)
    ]


def imports_in_functions(modules: dict[str, Module]) -> list[str]:
    found = {
        (module.path, node.lineno, function.name)
        for module in library(modules)
        for function in functions(module.tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return [f"{path}:{line}: import inside {name}(): move it to the top" for path, line, name in sorted(found)]


def long_inits(modules: dict[str, Module]) -> list[str]:
    return [
        f"{module.path}:{MAX_INIT_LINES + 1}: {module.line_count} lines, at most {MAX_INIT_LINES} in an __init__.py"
        for module in modules.values()
        if module.is_package and module.line_count > MAX_INIT_LINES
    ]


def long_files(modules: dict[str, Module], package: Path = PACKAGE) -> list[str]:
    return [
        f"{module.path}:{MAX_FILE_LINES + 1}: {module.line_count} lines, at most {MAX_FILE_LINES} in a file"
        for module in modules.values()
        if module.line_count > MAX_FILE_LINES and str(module.path.relative_to(package)) not in GENERATED
    ]


def long_functions(modules: dict[str, Module], package: Path = PACKAGE) -> list[str]:
    return [
        f"{module.path}:{function.lineno}: {function.name}() has {length} lines, at most {MAX_FUNCTION_LINES}"
        for module in modules.values()
        if str(module.path.relative_to(package)) not in GENERATED
        for function in functions(module.tree)
        if (length := (function.end_lineno or function.lineno) - function.lineno + 1) > MAX_FUNCTION_LINES
    ]


RULES = (
    unplaced_modules,
    upward_imports,
    imports_of_facades,
    imports_of_tests,
    facades_with_logic,
    imports_in_functions,
    long_inits,
    long_files,
    long_functions,
)


@pytest.fixture(scope="module")
def thunder_modules() -> dict[str, Module]:
    return read_modules(PACKAGE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package(rule, thunder_modules):
    violations = [line.replace(f"{PACKAGE.parent}/", "") for line in rule(thunder_modules)]
    if violations:
        pytest.fail("\n".join([f"{len(violations)} violation(s):", *violations]), pytrace=False)


def test_every_facade_has_one_role():
    layered = {name for names in LAYERS.values() for name in names}
    assert not FACADES & layered


def write_package(folder: Path, files: dict[str, str]) -> dict[str, Module]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return read_modules(folder)


@pytest.mark.parametrize(
    "statement",
    [
        "import thunder.torch.nn",
        "import thunder",
        "from thunder import jit",
        "from thunder.torch import nn as nn",
        "from ..torch.nn import relu",
        "from .. import jit",
        "if TYPE_CHECKING:\n    from thunder.executors import torchex",
        'def __getattr__(name):\n    return importlib.import_module("thunder.jit")',
    ],
)
def test_upward_import_is_found(tmp_path, statement):
    others = {"torch/nn.py": "", "jit.py": "", "executors/torchex.py": ""}
    modules = write_package(tmp_path, others | {"core/trace.py": statement})
    (violation,) = upward_imports(modules)
    assert "thunder.core.trace (L2 IR) imports thunder" in violation


@pytest.mark.parametrize(
    "statement",
    [
        "import torch.nn",
        "from thunder.core import dtypes, proxies",
        "from thunder.core.transforms import dce",
        "from .dce import run",
        "from thunder.core.transform_base import Transform",
    ],
)
def test_downward_import_is_allowed(tmp_path, statement):
    files = {"core/transforms/cse.py": statement, "core/transforms/dce.py": "", "core/transforms/__init__.py": ""}
    modules = write_package(tmp_path, files | {"core/dtypes.py": "", "core/proxies.py": "", "core/__init__.py": ""})
    assert not [violation for rule in RULES[:6] for violation in rule(modules)]


@pytest.mark.parametrize(
    "rule, files, message",
    [
        (unplaced_modules, {"core/helpers.py": ""}, "thunder.core.helpers has no layer"),
        (imports_of_facades, {"torch/a.py": "from thunder.core import utils"}, "the façade thunder.core.utils"),
        (imports_of_tests, {"jit.py": "from thunder.tests import x", "tests/x.py": ""}, "not in the wheel"),
        (facades_with_logic, {"core/utils.py": '"""A."""\nimport a\n__all__ = ["a"]\nx = a.b()'}, "utils.py:4: "),
        (imports_in_functions, {"jit.py": "class A:\n    def f(self):\n        import os"}, "jit.py:3: import in"),
        (long_inits, {"__init__.py": "\n" * (MAX_INIT_LINES + 1)}, "151 lines"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_violation_is_found(tmp_path, rule, files, message):
    (violation,) = rule(write_package(tmp_path, files))
    assert message in violation


def test_sizes_are_found(tmp_path):
    body = "    pass\n"
    files = {"a.py": "\n" * (MAX_FILE_LINES + 1), "b.py": "def ok():\n" + body * (MAX_FUNCTION_LINES - 1)}
    modules = write_package(tmp_path, files | {"c.py": "async def f():\n" + body * MAX_FUNCTION_LINES})
    (long_file,) = long_files(modules, tmp_path)
    assert "a.py:601: 601 lines, at most 600" in long_file
    (long_function,) = long_functions(modules, tmp_path)
    assert "f() has 81 lines" in long_function


def test_tests_may_import_anything_anywhere(tmp_path):
    modules = write_package(tmp_path, {"tests/test_a.py": "def test():\n    from thunder.core import utils"})
    assert not [violation for rule in RULES[:6] for violation in rule(modules)]
