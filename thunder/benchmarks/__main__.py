"""`python -m thunder.benchmarks`: eager, torch.compile and thunder side by side, as tables and as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

from thunder.benchmarks.bench import Plan, run
from thunder.benchmarks.models import MODELS, parse
from thunder.benchmarks.peers import PEERS, available_peers
from thunder.benchmarks.plot import write_plot
from thunder.benchmarks.report import errors, text

DEFAULT_MODELS = ["llama:4,16,32", "gpt2", "resnet", "moe", "mlp", "tiny"]
QUICK_MODELS = ["llama:1,2", "resnet:2", "mlp:2", "tiny"]


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m thunder.benchmarks", description=__doc__)
    models_help = f"of {', '.join(MODELS)}; default: {' '.join(DEFAULT_MODELS)}"
    parser.add_argument("--models", nargs="+", metavar="NAME[:LAYERS,...]", help=models_help)
    peers_help = f"of {', '.join(PEERS)}; default: all that are installed and for the device"
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), metavar="PEER", help=peers_help)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    plot_help = "draw first steps against depth there (needs matplotlib and a model with several depths)"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=plot_help)
    quick_help = "shallow models, few repetitions, no peer that runs a C++ compiler: a look, not a measurement"
    parser.add_argument("--quick", action="store_true", help=quick_help)
    parser.add_argument("--first-repeats", type=int, metavar="N", help="fresh processes per first step (default: 3)")
    parser.add_argument("--steady-repeats", type=int, metavar="N", help="rounds of warm steps (default: 15)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of torch (default: torch's choice)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parsed = parser.parse_args(arguments)
    if parsed.plot is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot: matplotlib is not installed (pip install 'lightning-thunder[viz]')")
    parsed.models = parsed.models or (QUICK_MODELS if parsed.quick else DEFAULT_MODELS)
    try:
        parsed.models = [name for specification in parsed.models for name in parse(specification)]
    except ValueError as e:
        parser.error(str(e))
    if parsed.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    counts = (parsed.first_repeats, parsed.steady_repeats, parsed.threads)
    if any(n is not None and n < 1 for n in counts):
        parser.error("repetitions and threads are positive numbers")
    return parsed


def show_progress(line: str) -> None:
    """The step that is being taken, redrawn in place on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def default_peers(device: str, quick: bool) -> list[str]:
    """All peers that can run here; for a quick look those without a compiler of kernels."""
    return [p for p in available_peers(device) if not (quick and PEERS[p].compiles_kernels)]


def main(arguments: list[str]) -> int:
    """Measures and prints; 1 if a measurement failed."""
    parsed = parse_arguments(arguments)
    plan = Plan(
        models=parsed.models,
        peers=parsed.peers or default_peers(parsed.device, parsed.quick),
        first_repeats=parsed.first_repeats or (1 if parsed.quick else 3),
        steady_repeats=parsed.steady_repeats or (3 if parsed.quick else 15),
        device=parsed.device,
        threads=parsed.threads,
    )

    def keep(results: dict[str, Any]) -> None:
        if parsed.json is not None:
            parsed.json.write_text(json.dumps(results, indent=1) + "\n")

    results = run(plan, show_progress, keep)
    show_progress("")
    sys.stdout.write(text(results) + "\n")
    if parsed.plot is not None and not write_plot(results, parsed.plot):
        sys.stderr.write("--plot: no model was measured at several depths, so nothing is drawn\n")
    return 1 if errors(results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
