"""Graphs as scripts: each runs on its own, with inputs like those that the graph was captured with."""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx

from thunder.core.errors import ThunderValueError
from thunder.core.options import DebugOptions
from thunder.dynamo.utils import (
    CompilerType,
    SubgraphInfo,
    example_input_meta_to_input,
    get_split_reasons_string,
    input_to_example_input_meta,
)
from thunder.extend.executor import Executor
from thunder.frontend.lowering import example_value

COMPILE_LINES = {
    "eager": "compiled_model = model",
    "thunder": "compiled_model = thunder.jit(model{options})",
    "inductor": 'compiled_model = torch.compile(model, backend="inductor")',
}

_RUN = """
if __name__ == "__main__":
    print(compiled_model(*inputs))
"""

_BENCHMARK = """
def seconds_per_call(fn, calls=20):
    fn(*inputs)
    start = time.perf_counter()
    for _ in range(calls):
        fn(*inputs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


if __name__ == "__main__":
    print(f"eager {seconds_per_call(model):.3e} s, compiled {seconds_per_call(compiled_model):.3e} s")
"""


def options_to_str(thunder_options: dict[str, Any]) -> str:
    """Options as keyword arguments in source, each after ", ". Transforms have no source and are left out."""
    parts = []
    for name, value in thunder_options.items():
        if name == "transforms":
            continue
        if name == "executors" and value is not None:
            value = [e.name if isinstance(e, Executor) else e for e in value]
        if isinstance(value, DebugOptions) or value is None:
            continue
        parts.append(f", {name}={value!r}")
    return "".join(parts)


class _Source:
    """Source of a graph module and of the graph modules inside it."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.classes: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def add(self, gm: fx.GraphModule, class_name: str, path: str = "") -> None:
        """Writes `gm` as a class. `path`: of `gm` below the outermost module, ending in a dot."""
        setup: list[str] = []
        targets = dict.fromkeys(str(n.target) for n in gm.graph.nodes if n.op in ("get_attr", "call_module"))
        for target in targets:
            value: Any = gm
            for part in target.split("."):
                value = getattr(value, part)
            setup += self._attribute(value, target, class_name, path)
        code = gm.graph.python_code("self")
        for name, value in code.globals.items():
            self._import(name, value)
        init = ["def __init__(self):", "    super().__init__()", *(f"    {line}" for line in setup)]
        body = "\n".join(init) + "\n\n" + code.src.strip()
        self.classes.append(f"class {class_name}(torch.nn.Module):\n{textwrap.indent(body, '    ')}\n")

    def _attribute(self, value: Any, target: str, class_name: str, path: str) -> list[str]:
        if "." in target:
            raise ThunderValueError(f"the graph reads {target}, of a module that is no graph: it has no source")
        if isinstance(value, fx.GraphModule):
            inner = f"{class_name}_{target}"
            self.add(value, inner, f"{path}{target}.")
            return [f"self.{target} = {inner}()"]
        if isinstance(value, torch.Tensor):
            self.tensors[path + target] = value.detach()
            is_parameter = isinstance(value, torch.nn.Parameter)
            made = f"TENSORS[{path + target!r}]"
            made = f"torch.nn.Parameter({made}, {value.requires_grad})" if is_parameter else made
            return [f"self.{target} = {made}" if is_parameter else f'self.register_buffer("{target}", {made})']
        return [f"self.{target} = {value!r}"]

    def _import(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            self.imports[name] = (
                f"import {value.__name__}" if name == value.__name__ else f"import {value.__name__} as {name}"
            )
            return
        module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(value, float):
            self.imports[name] = f"{name} = float({str(value)!r})"
        elif value is None or value is type(None):
            self.imports[name] = f"{name} = {'None' if value is None else 'type(None)'}"
        elif module is not None and path is not None and path.isidentifier() and not keyword.iskeyword(path):
            self.imports[name] = f"from {module} import {path}" + ("" if path == name else f" as {name}")
        else:
            raise ThunderValueError(f"the graph calls {value!r}, which cannot be imported: it has no source")


def graph_script(
    gm: fx.GraphModule,
    input_metas: Sequence[Any],
    *,
    executor: str = "thunder",
    thunder_options: dict[str, Any] | None = None,
    benchmark: bool = False,
    comment: str = "",
    data_file: str,
    serialize: bool = False,
) -> tuple[str, dict[str, Any]]:
    """A script that runs a graph, and what it loads from `data_file` beside it (empty: nothing).

    Args:
        executor: "eager", "thunder" or "inductor".
        serialize: the inputs are stored too instead of made at random in the script.
    Raises: ThunderValueError where the graph calls something that cannot be imported.
    """
    source = _Source()
    source.add(gm, "DynamoModule")
    data: dict[str, Any] = {"tensors": source.tensors} if source.tensors else {}
    if serialize:
        data["inputs"] = [example_input_meta_to_input(m) for m in input_metas]
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [
        f"# torch {torch.__version__}",
        "import time",
        "from pathlib import Path",
        "",
        "import torch",
        "import thunder",
    ]
    lines += ["from thunder.dynamo.utils import ExampleInputMetaData, example_input_meta_to_input"]
    lines += sorted({line for name, line in source.imports.items() if name != "torch"})
    lines += [""]
    if data:
        lines += [f'DATA = torch.load(Path(__file__).with_name("{data_file}"), weights_only=False)']
    if source.tensors:
        lines += ['TENSORS = DATA["tensors"]']
    lines += ["", "", *source.classes, ""]
    if serialize:
        lines += ['inputs = DATA["inputs"]']
    else:
        lines += ["input_metas = [", *(f"    {_meta_source(m)}," for m in input_metas), "]"]
        lines += ["torch.manual_seed(0)", "inputs = [example_input_meta_to_input(m) for m in input_metas]"]
    options = options_to_str(thunder_options or {})
    lines += ["model = DynamoModule()", COMPILE_LINES[executor].format(options=options)]
    return "\n".join(lines) + "\n" + (_BENCHMARK if benchmark else _RUN), data


def _meta_source(meta: Any) -> str:
    return repr(meta)


def write_script(folder: str | Any, file_name: str, gm: fx.GraphModule, input_metas: Sequence[Any], **how: Any) -> Path:
    """Writes `graph_script(gm, input_metas, **how)` and its data; gives the script's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    data_file = Path(file_name).with_suffix(".pt").name
    text, data = graph_script(gm, input_metas, data_file=data_file, **how)
    if data:
        torch.save(data, folder / data_file)
    path = folder / file_name
    path.write_text(text)
    return path


def write_reproducers(
    infos: Sequence[SubgraphInfo], folder: Any, thunder_options: dict[str, Any], *, benchmark: bool, serialize: bool
) -> list[Path]:
    """A script for each piece that thunder runs; gives their paths."""
    paths = []
    for graph_index, info in enumerate(infos):
        pieces = [m for m, c in info.submodule_to_compiled_functions.items() if c.compiler is CompilerType.THUNDER]
        for index, gm in enumerate(pieces):
            inputs = [example_value(n) for n in gm.graph.nodes if n.op == "placeholder"]
            metas = [input_to_example_input_meta(e) for e in inputs]
            name = f"graph{graph_index}_thunder_{index}_{'benchmark' if benchmark else 'repro'}.py"
            comment = get_split_reasons_string(info)
            how = {"benchmark": benchmark, "comment": comment, "serialize": serialize}
            paths.append(write_script(folder, name, gm, metas, thunder_options=thunder_options, **how))
    return paths
