"""thunder.core.codegen: source to function."""

from __future__ import annotations

import gc
import linecache
import traceback

import pytest
import torch

from thunder.core.codegen import compile_source
from thunder.executors.passes import transform_for_execution
from thunder.executors.torchex import ex as torchex
from thunder.tests.unit.traces import make_trace, mul

SOURCE = "import math\ndef f(x):\n  y = math.pi * x\n  return y / zero\n"


def test_the_function_sees_its_context():
    f = compile_source(SOURCE, "f", {"zero": 2})
    assert f(1) == pytest.approx(1.5707963)
    assert f.__thunder_source__ == SOURCE


def test_the_context_wins_over_imports():
    class Math:
        pi = 4

    assert compile_source(SOURCE, "f", {"zero": 2, "math": Math})(1) == 2


def test_tracebacks_show_the_generated_line():
    with pytest.raises(ZeroDivisionError) as error:
        compile_source(SOURCE, "f", {"zero": 0})(1)
    text = "".join(traceback.format_exception(error.value))
    assert "return y / zero" in text
    assert 'File "<thunder.f_' in text


def test_tracebacks_through_a_trace_show_the_line():
    run = transform_for_execution(make_trace(lambda x, y: mul(x, y)), [torchex]).python_callable()
    with pytest.raises(RuntimeError) as error:
        run(torch.ones(2), torch.ones(3))
    assert 't0 = torch.mul(x, y)  # t0: "cpu f32[2, 3]"' in "".join(traceback.format_exception(error.value))


def test_each_function_has_a_file_and_gives_it_up():
    def files():
        return {name for name in linecache.cache if name.startswith("<thunder.f_")}

    before = files()
    functions = [compile_source(SOURCE, "f", {"zero": 1}) for _ in range(3)]
    assert len(files() - before) == 3
    linecache.checkcache()
    assert len(files() - before) == 3
    del functions
    gc.collect()
    assert files() <= before


def test_invalid_source_is_a_syntax_error_and_leaves_nothing():
    before = set(linecache.cache)
    with pytest.raises(SyntaxError):
        compile_source("def f(:\n", "f", {})
    assert {name for name in set(linecache.cache) - before if "thunder" in name} == set()
