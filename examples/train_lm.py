"""Train a small Llama-style language model on Python source code, in eager PyTorch and under thunder.jit.

    python examples/train_lm.py [--steps 200] [--plot curves.png]

The text is this Python's own standard library, read as bytes, so nothing is downloaded. Both runs start from one seed
and see the same batches; their losses must agree to 1e-4 at every step. Prints both times, and writes a picture of both
loss curves where matplotlib is installed. The exit status is 0 if the losses agree and fall.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import thunder

try:
    from matplotlib import pyplot
    from matplotlib.figure import Figure
except ImportError:
    pyplot = None


@dataclass(frozen=True)
class Config:
    """Sizes of the model (bytes are the vocabulary) and of a batch."""

    vocab: int = 256
    width: int = 96
    layers: int = 3
    heads: int = 6
    kv_heads: int = 2
    hidden: int = 256
    context: int = 64
    batch: int = 16

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return x * scale * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, time, head width); the halves of the last dimension are the pairs."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention in which several query heads share a key and value head."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.query = nn.Linear(c.width, c.heads * c.head_width, bias=False)
        self.key = nn.Linear(c.width, c.kv_heads * c.head_width, bias=False)
        self.value = nn.Linear(c.width, c.kv_heads * c.head_width, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, _ = x.shape
        c = self.c
        q = self.query(x).view(n, t, c.heads, c.head_width).transpose(1, 2)
        k = self.key(x).view(n, t, c.kv_heads, c.head_width).transpose(1, 2)
        v = self.value(x).view(n, t, c.kv_heads, c.head_width).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(n, t, c.width))


class SwiGLU(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate = nn.Linear(c.width, c.hidden, bias=False)
        self.up = nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(c.width), Attention(c)
        self.mlp_norm, self.mlp = RMSNorm(c.width), SwiGLU(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """The mean cross entropy, in nats, of predicting `targets` (batch, time) from `tokens` (batch, time)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, c: Config):
        super().__init__()
        self.embedding = nn.Embedding(c.vocab, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.width)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, c.head_width, 2) / c.head_width)
        angles = torch.outer(torch.arange(c.context), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def read_text(limit_bytes: int = 4_000_000) -> Tensor:
    """The first `limit_bytes` of the standard library's source files, in the order of their names, as (n,) uint8."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    return torch.frombuffer(text[:limit_bytes], dtype=torch.uint8)


def batches(text: Tensor, c: Config, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`steps` pairs (tokens, the tokens that follow them), both (batch, context) int64."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - c.context - 1, (c.batch, 1), generator=generator)
        windows = text[starts + torch.arange(c.context + 1)].long()
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def show_progress(label: str, step: int, steps: int, loss: float) -> None:
    """Redraws a bar on a terminal; elsewhere does nothing."""
    if not sys.stderr.isatty():
        return
    filled = 40 * step // steps
    end = "\n" if step == steps else ""
    bar = f"[{'#' * filled}{'.' * (40 - filled)}]"
    print(f"\r{label:8s} {bar} {step}/{steps}  loss {loss:.4f}", end=end, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Run:
    """Losses of a run; seconds of its first step (with compilation) and of all others."""

    losses: list[float]
    first_s: float
    rest_s: float


def train(label: str, compiler: Callable, text: Tensor, c: Config, steps: int, seed: int) -> Run:
    """Trains a new model, which depends on the seed only, wrapped by `compiler`."""
    torch.manual_seed(seed)
    model = compiler(LanguageModel(c))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    losses: list[float] = []
    first_s = 0.0
    start = time.perf_counter()
    for tokens, targets in batches(text, c, steps, seed):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        first_s = first_s or time.perf_counter() - start
        show_progress(label, len(losses), steps, losses[-1])
    return Run(losses, first_s, time.perf_counter() - start - first_s)


def plot(runs: dict[str, Run], path: Path) -> None:
    """Writes a picture: both loss curves, and below them how far they are apart."""
    figure: Figure
    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=(3, 1), layout="constrained"
    )
    (eager_name, eager), (jit_name, jit) = runs.items()
    steps = range(1, len(eager.losses) + 1)
    top.plot(steps, eager.losses, color="0.6", linewidth=4, label=f"{eager_name}: {eager.rest_s:.1f} s")
    top.plot(steps, jit.losses, color="tab:purple", linewidth=1.2, label=f"{jit_name}: {jit.rest_s:.1f} s")
    top.set_ylabel("loss (nats per byte)")
    top.set_title("A Llama-style model on the standard library's source code")
    top.legend(title="time after the first step")
    top.grid(alpha=0.3)
    bottom.plot(steps, [abs(a - b) for a, b in zip(eager.losses, jit.losses)], color="tab:red", linewidth=1)
    bottom.axhline(1e-4, color="0.4", linestyle="--", linewidth=1)
    bottom.annotate("allowed", (len(eager.losses), 1e-4), ha="right", va="bottom", fontsize=8, color="0.4")
    bottom.set_yscale("symlog", linthresh=1e-8)
    bottom.set_ylim(0, 1e-2)
    bottom.set_ylabel("difference")
    bottom.set_xlabel("step")
    bottom.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small language model in eager and under thunder.jit.")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run")
    parser.add_argument("--seed", type=int, default=0, help="decides weights and batches")
    parser.add_argument("--plot", type=Path, default=Path("train_lm.png"), help="where the picture goes")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    config = Config()
    text = read_text()
    parameters = sum(p.numel() for p in LanguageModel(config).parameters())
    print(f"{len(text):,} bytes of text, {parameters:,} parameters, {arguments.steps} steps")
    runs = {
        "eager": train("eager", lambda model: model, text, config, arguments.steps, arguments.seed),
        "thunder": train("thunder", thunder.jit, text, config, arguments.steps, arguments.seed),
    }
    for name, run in runs.items():
        times = f"first step {run.first_s:6.2f} s, the others {run.rest_s:6.2f} s"
        print(f"{name:8s} loss {run.losses[0]:.4f} -> {run.losses[-1]:.4f}   {times}")
    difference = max(abs(a - b) for a, b in zip(runs["eager"].losses, runs["thunder"].losses))
    print(f"largest difference of the losses over all steps: {difference:.1e} (allowed: 1e-4)")
    if pyplot is None:
        print("no picture: matplotlib is not installed")
    else:
        plot(runs, arguments.plot)
        print(f"picture: {arguments.plot}")
    learned = arguments.steps < 20 or runs["thunder"].losses[-1] < 0.8 * runs["thunder"].losses[0]
    if difference > 1e-4 or not learned:
        print("WRONG: the losses differ, or do not fall")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
