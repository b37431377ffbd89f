"""Large regions are cut where layers of a model end."""

from __future__ import annotations

import pytest

from thunder.core.origin import origin
from thunder.executors.layers import layer_of, split_by_layers
from thunder.tests.unit.traces import make_trace, sin


def nodes_of(*paths: str) -> list:
    """A chain of operations from modules with these paths."""

    def program(x):
        for path in paths:
            with origin(module_path=path):
                x = sin(x)
        return x

    return [n for n in make_trace(program, "x").bound_symbols if n.sym is sin]


def parts(paths: list[str], limit: int) -> list[list[str]]:
    nodes = nodes_of(*paths)
    found = split_by_layers(nodes, limit)
    assert [n for part in found for n in part] == nodes
    return [[n.origin.module_path for n in part] for part in found]


@pytest.mark.parametrize(
    "path, layer",
    [
        ("layers.3.attention.query", ("layers.", 3)),
        ("model.blocks.0.experts.7", ("model.blocks.", 0)),
        ("12", ("", 12)),
        ("0.1", ("", 0)),
        ("conv1.weight2", None),
        ("head", None),
        ("", None),
    ],
)
def test_layers_are_items_of_the_outermost_list(path, layer):
    (node,) = nodes_of(path)
    assert layer_of(node) == layer


def test_small_regions_and_those_without_layers_stay_whole():
    assert parts(["a.0", "a.1", "a.2"], 3) == [["a.0", "a.1", "a.2"]]
    assert len(parts(["a", "b", ""] * 5, 3)) == 1


def test_equal_runs_of_layers():
    layers = [f"a.{n}.{part}" for n in range(6) for part in "xy"]
    assert [len(p) for p in parts(layers, 4)] == [2] * 6
    assert [len(p) for p in parts(layers, 8)] == [4] * 3
    assert [len(p) for p in parts(layers[::-1], 8)] == [4] * 3
    assert [len(p) for p in parts(layers, 10)] == [4] * 3


def test_what_lies_between_before_and_after_layers():
    paths = ["embed", "a.0.x", "", "a.1.x", "", "a.2.x", "norm", "head"]
    assert parts(paths, 3) == [["embed"], ["a.0.x", ""], ["a.1.x", ""], ["a.2.x"], ["norm", "head"]]


def test_lists_after_one_another():
    paths = [f"down.{n}" for n in (0, 0, 1, 1)] + [f"up.{n}" for n in (0, 0, 1, 1)]
    assert parts(paths, 4) == [["down.0"] * 2, ["down.1"] * 2, ["up.0"] * 2, ["up.1"] * 2]
