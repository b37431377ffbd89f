"""Keys of regions, the table of this process, and the store on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import fx

from thunder.core import dtypes, prims
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx
from thunder.executors.fusion_regions import Region, producers_and_consumers
from thunder.executors.region_cache import (
    DiskStore,
    RegionTable,
    argument_text,
    default_store,
    has_text,
    machine_text,
    region_text,
)
from thunder.tests.unit.traces import add, cos, make_trace, mul, sin
from thunder.torch.registry import symbol_for


def region_of(trace: TraceCtx) -> Region:
    nodes = [n for n in trace.bound_symbols if n.sym not in (prims.unpack_trivial, prims.python_return)]
    return Region(*producers_and_consumers(trace.bound_symbols), nodes)


def text_of(fn, names: str = "x y", **facts) -> str:
    region = region_of(make_trace(fn, names, **facts))
    return region_text(region.bsyms, region.inputs, region.outputs)


def test_a_region_as_text():
    text = text_of(lambda x, y: add(mul(x, 2.0), y, alpha=3))
    assert text == textwrap.dedent("""\
        %0: cpu torch.float32 [2, 3]
        %1: cpu torch.float32 [2, 3]
        %2: cpu torch.float32 [2, 3] = torch.mul((%0, 2.0), dict())
        %3: cpu torch.float32 [2, 3] = torch.add((%2, %1), dict(('alpha', 3)))
        return %3""")


def test_names_of_values_do_not_matter():
    assert text_of(lambda x, y: mul(sin(x), y)) == text_of(lambda x, y: mul(sin(y), x), "q p")


@pytest.mark.parametrize(
    "other", [lambda x, y: mul(sin(x), x), lambda x, y: mul(cos(x), y), lambda x, y: mul(y, sin(x))]
)
def test_operations_and_wiring_matter(other):
    assert text_of(lambda x, y: mul(sin(x), y)) != text_of(other)


def test_numbers_of_different_types_are_told_apart():
    texts = [text_of(lambda x, n=n: mul(x, n), "x") for n in (1, 1.0, True, 0.0, -0.0, float("nan"))]
    assert len(set(texts)) == len(texts)


def test_shapes_and_outputs_matter():
    def both(x):
        a = sin(x)
        return a, cos(a)

    texts = [text_of(lambda x: cos(sin(x)), "x"), text_of(both, "x"), text_of(both, "x", shape=(3, 2))]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "None"),
        ((1, [2.5, "a"]), "(1, list(2.5, 'a'))"),
        (slice(0, None, 2), "slice(0, None, 2)"),
        (..., "Ellipsis"),
        (torch.float16, "torch.float16"),
        (dtypes.float16, "torch.float16"),
        (torch.device("cpu"), "'cpu'"),
        (torch.strided, "torch.strided"),
        ({"a": 1}, "dict(('a', 1))"),
        (torch.Size([1]), "(1)"),
        (fx.immutable_collections.immutable_list([1, 2]), "list(1, 2)"),
        (object(), None),
        ([object()], None),
        (torch.ones(1), None),
    ],
)
def test_arguments_as_text(value, text):
    assert argument_text(value, {}) == text


def test_a_node_with_an_argument_without_text_has_none():
    trace = make_trace(lambda x, y: add(x, y))
    node = trace.bound_symbols[2]
    assert has_text(node)
    assert not has_text(node.from_bsym(kwargs={"alpha": object()}))
    assert not has_text(node.from_bsym(sym=symbol_for(lambda x, y: x)))


def test_primitives_have_a_text_of_their_own():
    text = text_of(lambda x: prims.convert_element_type(x, dtypes.float16), "x")
    assert "torch.float16 [2, 3] = prims.CONVERT_ELEMENT_TYPE((%0, torch.float16), dict())" in text


def test_symbolic_sizes_have_no_text():
    size = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    node = make_trace(lambda x, y: add(x, y)).bound_symbols[2]
    x = TensorProxy("x", shape=(size, 3), device="cpu", dtype=torch.float32)
    assert not has_text(node.from_bsym(args=(x, node.args[1])))


# The table


def test_table_makes_each_entry_once_and_forgets_the_oldest():
    table = RegionTable(limit=2)
    made = []
    for key in "abacab":
        table.get(key, lambda key=key: made.append(key))
    assert made == ["a", "b", "c", "b"]
    assert (table.hits, table.misses, len(table)) == (2, 4, 2)
    table.clear()
    assert (table.hits, table.misses, len(table)) == (0, 0, 0)


def test_table_under_threads():
    table = RegionTable()
    results: list[object] = []

    def work() -> None:
        results.append(table.get("key", object))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(map(id, results))) == 1


# The store


def test_store_gives_back_what_it_got(tmp_path):
    store = DiskStore(tmp_path / "regions")
    assert store.load("a") is None
    assert store.save("a", b"one")
    assert store.save("b", b"")
    assert (store.load("a"), store.load("b"), store.load("c")) == (b"one", b"", None)
    assert store.save("a", b"two")
    assert store.load("a") == b"two"
    assert [p for p in store.directory.iterdir() if p.suffix != ".region"] == []
    store.discard("a")
    store.discard("a")
    assert store.load("a") is None


@pytest.mark.parametrize("damage", ["empty", "short", "altered"])
def test_corrupt_entries_are_absent_and_removed(tmp_path, damage):
    store = DiskStore(tmp_path)
    store.save("a", b"content")
    path = store.path("a")
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "short": content[:-1], "altered": content[:-1] + b"?"}[damage])
    assert store.load("a") is None
    assert not path.exists()
    store.save("a", b"content")
    assert store.load("a") == b"content"


def test_store_is_bounded_and_keeps_what_was_used_last(tmp_path):
    store = DiskStore(tmp_path, limit_bytes=3 * (32 + 100))
    for n, key in enumerate("abc"):
        store.save(key, bytes(100))
        os.utime(store.path(key), (1000 + n, 1000 + n))
    assert store.load("a") is not None
    store.save("d", bytes(100))
    assert [key for key in "abcd" if store.load(key) is not None] == ["a", "c", "d"]


def test_what_a_dead_process_left_is_removed(tmp_path):
    store = DiskStore(tmp_path)
    (tmp_path / "new.unfinished").write_bytes(b"half")
    (tmp_path / "old.unfinished").write_bytes(b"half")
    os.utime(tmp_path / "old.unfinished", (time.time() - 7200,) * 2)
    store.save("a", b"one")
    assert sorted(p.name for p in tmp_path.glob("*.unfinished")) == ["new.unfinished"]


def test_a_disk_that_takes_nothing_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = DiskStore(tmp_path / "file" / "below")
    assert not store.save("a", b"one")
    assert store.load("a") is None


_WRITER = """
import sys
from pathlib import Path
from thunder.executors.region_cache import DiskStore
store = DiskStore(Path(sys.argv[1]), limit_bytes=20_000)
blobs = {str(n): bytes([n]) * 4000 for n in range(8)}
for _ in range(20):
    for key, blob in blobs.items():
        found = store.load(key)
        assert found is None or found == blob, key
        store.save(key, blob)
"""


@pytest.mark.slow
def test_processes_may_share_a_store(tmp_path):
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [p.communicate(timeout=120)[1] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], errors
    assert all(p.suffix == ".region" for p in tmp_path.iterdir())


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    assert default_store().directory == tmp_path / "regions"
    monkeypatch.setenv("THUNDER_CACHE_DIR", "none")
    assert default_store() is None
    monkeypatch.delenv("THUNDER_CACHE_DIR")
    assert default_store().directory == Path.home() / ".cache" / "thunder" / "regions"


def test_machine_text_names_versions():
    assert f"torch {torch.__version__}" in machine_text()
