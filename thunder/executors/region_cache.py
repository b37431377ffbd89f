"""Regions compiled once: keys that say what a region computes, a table of this process, and a store on disk.

A key is text: the operations, how they are connected, the metadata of the inputs and all static arguments, but no names
of values. Regions with equal text share one compiled callable.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from thunder.__about__ import __version__
from thunder.core import devices, dtypes
from thunder.core.log import get_logger
from thunder.core.options import env
from thunder.core.prims.base import PrimID
from thunder.core.printer import dotted_path
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy, tensors_among
from thunder.core.sizes import SYMBOLIC_TYPES, free_symbols, is_backed, size_expression
from thunder.core.symbol import BoundSymbol

_log = get_logger("cache")

_LITERALS = (type(None), bool, int, float, complex, str, type(Ellipsis), bytes)
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def argument_text(x: Any, names: dict[str, str]) -> str | None:
    """An argument as text that is equal for equal values in every process; None where there is no such text.

    `names` maps the names of values to those in the text. Ints may be expressions of numbers that are among them.
    """
    if isinstance(x, Proxy):
        return names.get(x.name)
    if isinstance(x, SYMBOLIC_TYPES):
        is_known = isinstance(x, torch.SymInt) and names.keys() >= set(free_symbols(x))
        return size_expression(x, names) if is_known else None
    if type(x) in _LITERALS:
        return repr(x)
    if isinstance(x, dtypes.dtype):
        return str(dtypes.to_torch_dtype(x))
    if isinstance(x, devices.Device):
        return repr(str(devices.to_torch_device(x)))
    if isinstance(x, _TORCH_VALUES):
        return repr(str(x)) if isinstance(x, torch.device) else str(x)
    if isinstance(x, slice):
        x, kind = (x.start, x.stop, x.step), "slice"
    elif isinstance(x, dict):
        x, kind = tuple(x.items()), "dict"
    elif isinstance(x, tuple | list):
        kind = "list" if isinstance(x, list) else ""
    else:
        return None
    parts = [argument_text(v, names) for v in x]
    return None if any(p is None for p in parts) else f"{kind}({', '.join(parts)})"  # type: ignore[arg-type]


def operation_text(node: BoundSymbol) -> str | None:
    """The public path of the torch callable that a node stands for, or its name as a primitive; None without either."""
    if node.sym.torch_fn is None:
        return None
    return f"prims.{node.sym.id.name}" if isinstance(node.sym.id, PrimID) else dotted_path(node.sym.torch_fn)


def has_text(node: BoundSymbol) -> bool:
    """Whether a node can be part of a key: everything in it but its inputs is known and has a text.

    Sizes and ints may be expressions of numbers that are known when a program starts.
    """
    tensors = tensors_among((*node.flat_args, *node.flat_outs))
    symbolic = [x for x in (*node.flat_args, *(s for t in tensors for s in t.shape)) if isinstance(x, SYMBOLIC_TYPES)]
    if not all(isinstance(x, torch.SymInt) and is_backed(x) for x in symbolic):
        return False
    names = {p.name: "%" for p in node.flat_proxy_args if isinstance(p, TensorProxy)}
    names.update({name: name for x in symbolic for name in free_symbols(x)})
    return operation_text(node) is not None and argument_text((node.args, node.kwargs), names) is not None


def _tensor_text(p: TensorProxy, names: dict[str, str]) -> str:
    return f"{p.device.device_str()} {p.torch_dtype} [{', '.join(str(argument_text(s, names)) for s in p.shape)}]"


def number_names(inputs: Sequence[Proxy]) -> dict[str, str]:
    """What numbers among a region's inputs are called in its text."""
    return {p.name: f"n{n}" for n, p in enumerate(p for p in inputs if isinstance(p, NumberProxy))}


def region_text(nodes: Sequence[BoundSymbol], inputs: Sequence[Proxy], outputs: Sequence[Proxy]) -> str:
    """What a region computes, without names; every node must have a text (`has_text`). O(nodes).

    Strides are not in it: a compiled region looks at those of the tensors that it is given.
    """
    names = number_names(inputs)
    names.update({p.name: f"%{n}" for n, p in enumerate(p for p in inputs if isinstance(p, TensorProxy))})
    lines = [f"{names[p.name]}: {_tensor_text(p, names) if isinstance(p, TensorProxy) else 'int'}" for p in inputs]
    for node in nodes:
        made = tensors_among(node.flat_outs)
        for o in made:
            names.setdefault(o.name, f"%{len(names)}")
        left = ", ".join(f"{names[o.name]}: {_tensor_text(o, names)}" for o in made)
        arguments = argument_text((node.args, node.kwargs), names)
        lines.append(f"{left} = {operation_text(node)}{arguments}")
    lines.append(f"return {', '.join(names[o.name] for o in outputs)}")
    return "\n".join(lines)


def settings_text() -> str:
    """What else of this process decides how a region is compiled."""
    parts = (
        f"threads {torch.get_num_threads()}",
        f"default dtype {torch.get_default_dtype()}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"matmul precision {torch.get_float32_matmul_precision()}",
    )
    return "\n".join(parts)


@lru_cache(maxsize=1)
def machine_text() -> str:
    """The versions and the machine that compiled code is valid for."""
    parts = [f"thunder {__version__}", f"torch {torch.__version__}", f"python {platform.python_version()}"]
    parts += [platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    parts.append(cpu_line("flags", "Features"))
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        parts += [f"cuda {torch.version.cuda} {torch.cuda.get_device_name(n)}" for n in range(count)]
    return "\n".join(parts)


def cpu_line(*names: str) -> str:
    """What the system lists first of its processor under one of these names; the processor's name if it lists none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(names)), platform.processor())


class RegionTable:
    """The compiled regions of this process by key, the most recently used ones. Safe under threads."""

    def __init__(self, limit: int = 1024):
        self.limit = limit
        self.hits = self.misses = 0
        self._entries: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """The entry of `key`, made now if there is none. `make` runs under the table's lock and must be quick."""
        with self._lock:
            if key in self._entries:
                self.hits += 1
                self._entries.move_to_end(key)
                return self._entries[key]
            self.misses += 1
            entry = self._entries[key] = make()
            while len(self._entries) > self.limit:
                self._entries.popitem(last=False)
            return entry

    def clear(self) -> None:
        """Forgets all entries and counts."""
        with self._lock:
            self._entries.clear()
            self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)


class DiskStore:
    """Blobs on disk by the hash of a text. A blob is whole or absent, whoever else reads and writes.

    A file is the SHA-256 of its content followed by the content. Writing goes to a temporary file that is then moved
    into place. A file that is cut short or altered counts as absent and is removed; one that is not the user's own
    counts as absent. When all files together are larger than `limit_bytes`, those not used for longest are removed.
    """

    _SUFFIX = ".region"
    _UNFINISHED = ".unfinished"  # left behind only by a process that died while it wrote
    _UNFINISHED_LIFETIME_S = 3600

    def __init__(self, directory: Path, limit_bytes: int = 1 << 30):
        self.directory = directory
        self.limit_bytes = limit_bytes

    def path(self, text: str) -> Path:
        """Where the blob of a text lies."""
        return self.directory / f"{hashlib.sha256(text.encode()).hexdigest()}{self._SUFFIX}"

    def load(self, text: str) -> bytes | None:
        """The blob of a text, or None. Using a blob makes it the newest."""
        path = self.path(text)
        try:
            if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
                return None
            content = path.read_bytes()
        except OSError:
            return None
        digest, blob = content[:32], content[32:]
        if hashlib.sha256(blob).digest() != digest:
            _log.debug("%s is corrupt and is removed", path)
            self.discard(text)
            return None
        try:
            os.utime(path)
        except OSError as e:
            _log.debug("%s: %s", path, e)
        return blob

    def save(self, text: str, blob: bytes) -> bool:
        """Stores a blob; False where the disk does not take it."""
        temporary: Path | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.directory, suffix=self._UNFINISHED, delete=False) as f:
                temporary = Path(f.name)
                f.write(hashlib.sha256(blob).digest() + blob)
            os.replace(temporary, self.path(text))
        except OSError as e:
            _log.debug("%s: cannot store a compiled region: %s", self.directory, e)
            if temporary is not None:
                _unlink(temporary)
            return False
        self._evict()
        return True

    def discard(self, text: str) -> None:
        """Removes a blob, if it is there."""
        _unlink(self.path(text))

    def _evict(self) -> None:
        for path in self.directory.glob(f"*{self._UNFINISHED}"):
            try:
                is_abandoned = path.stat().st_mtime < time.time() - self._UNFINISHED_LIFETIME_S
            except OSError:
                continue
            if is_abandoned:
                _unlink(path)
        found: list[tuple[float, int, Path]] = []
        for path in self.directory.glob(f"*{self._SUFFIX}"):
            try:
                stat = path.stat()
            except OSError:
                continue
            found.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit_bytes:
                break
            _unlink(path)
            total -= size


def _unlink(path: Path) -> None:
    try:
        path.unlink()
    except OSError as e:
        _log.debug("%s: %s", path, e)


def default_store() -> DiskStore | None:
    """The store in THUNDER_CACHE_DIR: ~/.cache/thunder if that is unset, no store if it is "none"."""
    chosen = env("THUNDER_CACHE_DIR")
    if chosen is not None and chosen.lower() == "none":
        return None
    return DiskStore(Path(chosen or "~/.cache/thunder").expanduser() / "regions")
