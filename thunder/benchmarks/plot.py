"""A picture of the time to the first step against depth."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

Series = dict[str, list[tuple[int, float]]]


def first_steps_by_depth(results: dict[str, Any]) -> dict[str, Series]:
    """For each kind of model that was measured at several depths: (layers, seconds) of each peer, by depth."""
    found: dict[str, Series] = {}
    for model, measured in results["models"].items():
        kind, _, layers = model.partition(":")
        first = measured["first"]
        for peer, numbers in first.items() if "error" not in first else ():
            if "first_s" in numbers:
                found.setdefault(kind, {}).setdefault(peer, []).append((int(layers), numbers["first_s"]))
    ordered = {kind: {peer: sorted(points) for peer, points in series.items()} for kind, series in found.items()}
    return {kind: series for kind, series in ordered.items() if any(len(points) > 1 for points in series.values())}


def write_plot(results: dict[str, Any], path: Path) -> bool:
    """Writes the picture, in the format of the path's suffix; False if no model was measured at several depths.

    Raises ImportError where matplotlib is not installed.
    """
    pyplot = importlib.import_module("matplotlib.pyplot")

    kinds = first_steps_by_depth(results)
    if not kinds:
        return False
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(6 * len(kinds), 4), layout="constrained", squeeze=False)
    for ax, (kind, series) in zip(axes[0], kinds.items(), strict=True):
        for peer, points in series.items():
            layers, seconds = zip(*points)
            is_own = peer.startswith("thunder")
            line = {"color": "tab:purple", "linewidth": 2} if is_own else {"linewidth": 1.2}
            ax.plot(layers, seconds, marker="o", label=peer, linestyle="--" if "[" in peer and is_own else "-", **line)
        ax.set_title(kind)
        ax.set_xlabel("layers")
        ax.set_ylabel("first forward and backward (s)")
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
        ax.grid(alpha=0.3)
        ax.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
