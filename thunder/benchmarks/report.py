"""Results as tables (Markdown, so that they also read as plain text) and as budgets met or missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thunder.benchmarks.bench import phase_shares
from thunder.benchmarks.peers import AOT, DYNAMO, EAGER, INDUCTOR, THUNDER, THUNDER_FUSED

Results = dict[str, Any]
MISSING = "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with padded cells; the first column is left-aligned, all others right-aligned."""
    widths = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths))]
        return f"| {' | '.join(cells)} |"

    rule = [("-" * w) if n == 0 else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def _value(results: Results, model: str, kind: str, peer: str, field: str) -> float | None:
    """A number of the results; None where it was not measured."""
    measured = results["models"][model][kind]
    return measured.get(peer, {}).get(field) if "error" not in measured else None


def _ratio(results: Results, model: str, kind: str, peer: str, base: str, field: str) -> float | None:
    value, other = _value(results, model, kind, peer, field), _value(results, model, kind, base, field)
    return None if value is None or not other else value / other


def _shown(value: float | None, form: str, scale: float = 1.0) -> str:
    return MISSING if value is None else format(value * scale, form)


def _peers(results: Results, kind: str) -> list[str]:
    """The peers that have a measurement of this kind for any model, in the order of measuring."""
    found = (results["models"][model][kind] for model in results["models"])
    return list(dict.fromkeys(peer for measured in found if "error" not in measured for peer in measured))


def _comparison(
    results: Results, kind: str, field: str, form: str, scale: float, ratios: Sequence[tuple[str, str]]
) -> str:
    peers = _peers(results, kind)
    pairs = [(a, b) for a, b in ratios if a in peers and b in peers]
    header = ["model", *peers, *(f"{a} / {b}" for a, b in pairs)]
    rows = [
        [
            model,
            *(_shown(_value(results, model, kind, peer, field), form, scale) for peer in peers),
            *(_shown(_ratio(results, model, kind, a, b, field), ".2f") for a, b in pairs),
        ]
        for model in results["models"]
    ]
    return table(header, rows)


def first_step_table(results: Results) -> str:
    """Seconds to the first forward and backward."""
    return _comparison(results, "first", "first_s", ".2f", 1.0, [(THUNDER, DYNAMO), (THUNDER_FUSED, INDUCTOR)])


def setup_table(results: Results) -> str:
    """Seconds that a process pays once, for the first compilation of all."""
    return _comparison(results, "first", "setup_s", ".2f", 1.0, [(THUNDER, DYNAMO), (THUNDER_FUSED, INDUCTOR)])


def _start_s(first: dict[str, Any]) -> float:
    """From the first compilation of a process to the model's first result."""
    return first["setup_s"] + first["first_s"]


def _warm_disk_ratio(results: Results, model: str, peer: str) -> float | None:
    """Seconds to start with what another process left on disk, to those with empty disks."""
    first = results["models"][model]["first"].get(peer, {})
    return _start_s(first["warm_disk"]) / _start_s(first) if "warm_disk" in first else None


def warm_disk_table(results: Results) -> str | None:
    """Seconds that a process takes to compile for the first time and to its first step, for peers that keep code on
    disk: with nothing there, and after another process. None where no such peer was measured.
    """
    rows = []
    for model in results["models"]:
        for peer, first in results["models"][model]["first"].items():
            ratio = _warm_disk_ratio(results, model, peer)
            if ratio is not None:
                times = [f"{_start_s(f):.2f}" for f in (first, first["warm_disk"])]
                rows.append([f"{model}, {peer}", *times, f"{ratio:.2f}"])
    return table(["model, peer", "empty disk", "warm disk", "ratio"], rows) if rows else None


def steady_table(results: Results) -> str:
    """Milliseconds of a warm step, and ratios to eager round by round."""
    peers = _peers(results, "steady")
    fused_column = f"{THUNDER_FUSED} / inductor"
    header = ["model", *(f"{p}, ms" for p in peers), *(f"{p} / eager" for p in peers[1:]), fused_column]
    rows = []
    for model in results["models"]:
        fused = _value(results, model, "steady", THUNDER_FUSED, "ratio")
        inductor = _value(results, model, "steady", INDUCTOR, "ratio")
        times = [_shown(_value(results, model, "steady", p, "step_s"), ".2f", 1e3) for p in peers]
        ratios = [_shown(_value(results, model, "steady", p, "ratio"), ".2f") for p in peers[1:]]
        rows.append([model, *times, *ratios, _shown(fused / inductor if fused and inductor else None, ".2f")])
    return table(header, rows)


def memory_table(results: Results, field: str) -> str:
    """Megabytes (10⁶ bytes) of `saved_bytes` or `peak_bytes`."""
    pairs = [(THUNDER, EAGER), (THUNDER, AOT), (THUNDER_FUSED, INDUCTOR)]
    return _comparison(results, "steady", field, ".2f", 1e-6, pairs)


def overhead_table(results: Results) -> str:
    """Microseconds of a warm call of a tiny module."""
    measured = results["overhead"]
    rows = [
        [peer, *(_shown(found[kind], ".1f") for kind in ("no_grad_us", "forward_us", "step_us"))]
        for peer, found in measured.items()
    ]
    return table(["peer", "call without grad, µs", "call with grad, µs", "call and backward, µs"], rows)


def phase_table(results: Results) -> str:
    """Milliseconds of each phase of thunder's first step, and its share of the whole."""
    shares = {model: phase_shares(results, model) for model in results["models"]}
    columns = {model: phases for model, phases in shares.items() if phases is not None}
    names = list(dict.fromkeys(name for phases in columns.values() for name in phases))
    total = {model: sum(phases.values()) for model, phases in columns.items()}
    rows = [
        [
            name,
            *(
                f"{phases.get(name, 0.0) * 1e3:.1f} ({phases.get(name, 0.0) / total[model]:.0%})"
                for model, phases in columns.items()
            ),
        ]
        for name in names
    ]
    return table(["phase, ms", *columns], rows)


def growth_table(results: Results) -> str | None:
    """How compile time grows with depth, for models measured at several; None if there are none."""
    rows = []
    for shallow, deep in _depth_pairs(results):
        depth = int(deep.partition(":")[2]) / int(shallow.partition(":")[2])
        cells = []
        for peer in _peers(results, "first"):
            ratio = _ratio_of_models(results, shallow, deep, peer)
            cells.append(_shown(ratio, ".2f"))
        own = [_passes_s(results, model) for model in (shallow, deep)]
        growth = own[1] / own[0] if all(own) else None
        rows.append([f"{shallow} to {deep}", f"{depth:.1f}", *cells, _shown(growth, ".2f")])
    if not rows:
        return None
    return table(["growth", "layers", *_peers(results, "first"), "thunder's own passes"], rows)


def _passes_s(results: Results, model: str) -> float:
    """Seconds of all of thunder's phases; 0 where they were not measured."""
    return sum(results["models"][model]["first"].get(THUNDER, {}).get("phases_s", {}).values())


def _ratio_of_models(results: Results, shallow: str, deep: str, peer: str) -> float | None:
    values = [_value(results, model, "first", peer, "first_s") for model in (shallow, deep)]
    return None if values[0] is None or values[1] is None else values[1] / values[0]


def _depth_pairs(results: Results) -> Iterator[tuple[str, str]]:
    """For each kind of model with several depths: (the least deep, each other)."""
    kinds: dict[str, list[str]] = {}
    for model in results["models"]:
        kinds.setdefault(model.partition(":")[0], []).append(model)
    for models in kinds.values():
        first, *others = sorted(models, key=lambda m: int(m.partition(":")[2]))
        for other in others:
            yield first, other


def budget_table(results: Results) -> str:
    """The budgets of the project against what was measured; the worst model counts."""
    rows = []
    for what, models, limit, measure in _budgets():
        found = {m: measure(results, m) for m in results["models"] if models in ("", m.partition(":")[0])}
        known = {m: v for m, v in found.items() if v is not None}
        if known:
            worst = max(known, key=lambda m: known[m])
            verdict = "met" if known[worst] <= limit else "missed"
            rows.append([what, f"{limit:.2f}", f"{known[worst]:.2f}", worst, verdict])
    gap = _overhead_gap_us(results)
    if gap is not None:
        verdict = "met" if gap <= 10 else "missed"
        rows.append(["warm tiny call, µs above torch.compile[eager]", "10.0", f"{gap:.1f}", "tiny", verdict])
    return table(["budget", "at most", "measured", "worst model", ""], rows)


def _budgets() -> list[tuple[str, str, float, Callable[[Results, str], float | None]]]:
    """(what, kind of model or "" for all, limit, measure of one model)."""

    def between(kind: str, field: str, peer: str, base: str) -> Callable[[Results, str], float | None]:
        return lambda results, model: _ratio(results, model, kind, peer, base, field)

    def fused_steady(results: Results, model: str) -> float | None:
        fused = _value(results, model, "steady", THUNDER_FUSED, "ratio")
        inductor = _value(results, model, "steady", INDUCTOR, "ratio")
        return fused / inductor if fused and inductor else None

    return [
        ("first step, thunder / torch.compile[eager]", "llama", 1.5, between("first", "first_s", THUNDER, DYNAMO)),
        ("first step, fused / inductor", "llama", 0.5, between("first", "first_s", THUNDER_FUSED, INDUCTOR)),
        ("start, warm disk / empty one, fused", "llama", 0.2, lambda r, m: _warm_disk_ratio(r, m, THUNDER_FUSED)),
        ("warm step, thunder / eager", "", 1.0, lambda r, m: _value(r, m, "steady", THUNDER, "ratio")),
        ("warm step, fused / inductor", "", 0.97, fused_steady),
        ("saved bytes, thunder / aot_eager (min-cut)", "", 1.0, between("steady", "saved_bytes", THUNDER, AOT)),
    ]


def _overhead_gap_us(results: Results) -> float | None:
    measured = results["overhead"]
    if THUNDER not in measured or DYNAMO not in measured:
        return None
    return measured[THUNDER]["forward_us"] - measured[DYNAMO]["forward_us"]


def errors(results: Results) -> list[str]:
    """A line per measurement that failed."""
    found: list[str] = []
    if "error" in results["overhead"]:
        found.append(f"call overhead: {results['overhead']['error']}")
    for model, kinds in results["models"].items():
        if "error" in kinds["steady"]:
            found.append(f"{model}, warm steps: {kinds['steady']['error']}")
        found += [f"{model}, first step, {peer}: {f['error']}" for peer, f in kinds["first"].items() if "error" in f]
    return found


def text(results: Results) -> str:
    """All tables, with headings."""
    facts = ", ".join(f"{k} {v}" for k, v in results["environment"].items())
    parts = [("Environment", facts)]
    parts.append(("First forward and backward in a fresh process, s", first_step_table(results)))
    parts.append(("The very first compilation of a process (one operation), s", setup_table(results)))
    warm_disk = warm_disk_table(results)
    if warm_disk is not None:
        parts.append(("From the first compilation of a process to the first step, s", warm_disk))
    growth = growth_table(results)
    if growth is not None:
        parts.append(("Growth of the first step with depth", growth))
    if THUNDER in _peers(results, "first"):
        parts.append(("Where thunder's first step goes", phase_table(results)))
    parts.append(("Warm step, forward and backward", steady_table(results)))
    parts.append(("Saved for backward, MB", memory_table(results, "saved_bytes")))
    parts.append(("Peak of a step, gradients included, MB", memory_table(results, "peak_bytes")))
    if "error" not in results["overhead"]:
        parts.append(("Warm call of a tiny module", overhead_table(results)))
        parts.append(("Budgets", budget_table(results)))
    failed = errors(results)
    if failed:
        parts.append(("Failed", "\n".join(failed)))
    return "\n\n".join(f"## {heading}\n\n{body}" for heading, body in parts)
