"""`python -m thunder env` prints what a bug report needs; `python -m thunder options` what can be set, as Markdown."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence

import torch

from thunder.__about__ import __version__
from thunder.core.options import ENV, CompileOptions, EnvVar, env, option_docs
from thunder.extend.registry import get_all_executors, get_always_executors, get_default_executors

_PACKAGES = ("numpy", "optree", "looseversion", "opt_einsum", "triton", "transformers")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return f"CUDA {torch.version.cuda}: {', '.join(names)}"


def environment() -> Iterator[tuple[str, str]]:
    """What is installed and set, as (what, value)."""
    yield "thunder", __version__
    yield "torch", torch.__version__
    yield "Python", platform.python_version()
    yield "platform", f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    yield "devices", _devices()
    for package in _PACKAGES:
        yield package, _version(package)
    for name, executors in (
        ("executors", get_all_executors()),
        ("default executors", get_default_executors()),
        ("always executors", get_always_executors()),
    ):
        yield name, ", ".join(str(ex.name) for ex in executors) or "none"
    for name in ENV:
        yield name, repr(env(name)) + ("" if os.environ.get(name) else " (default)")


def _values(variable: EnvVar) -> str:
    if variable.type is bool:
        return "0, 1"
    if variable.allowed is not None:
        return ", ".join(map(str, variable.allowed))
    return {tuple: "comma separated", str: "text", int: "number"}[variable.type]


def options_page() -> str:
    """docs/environment.md: the environment variables and the options of `thunder.jit`, from their declarations."""
    lines = [
        "# Environment variables and options",
        "",
        "Written by `python -m thunder options`; edit `thunder/core/options.py` instead.",
        "",
        "## Environment variables",
        "",
        "Read when they are needed; an empty one counts as unset.",
        "",
        "| variable | values | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for v in ENV.values():
        default = {None: "unset", (): "none", False: "0"}.get(v.default, str(v.default))
        lines.append(f"| `{v.name}` | {_values(v)} | {default} | {v.doc} |")
    lines += ["", "## Options of thunder.jit", ""]
    lines += ["Given as keywords; an unknown one is a TypeError that names the nearest."]
    lines += ["", "| option | default | meaning |", "| --- | --- | --- |"]
    defaults = CompileOptions()
    lines += [f"| `{name}` | `{defaults.get(name)!r}` | {doc} |" for name, doc in option_docs().items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m thunder", description="Tools of thunder.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("env", help="print versions, devices, executors and THUNDER_ variables")
    commands.add_parser("options", help="print the environment variables and options as Markdown")
    if parser.parse_args(arguments).command == "options":
        sys.stdout.write(options_page())
        return 0
    facts = list(environment())
    width = max(len(name) for name, _ in facts)
    sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
