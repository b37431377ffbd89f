"""The networks that are measured: written in plain PyTorch, random weights, sizes for a CPU with few cores.

`make("llama:16")` gives the model, its batch and the loss; a name may carry a number of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """What is measured.

    model: the module; called with `batch`, it gives a tensor.
    batch: positional arguments of the model.
    loss: from the model's result to the scalar that backward starts from.
    """

    model: nn.Module
    batch: tuple[Tensor, ...]
    loss: Callable[[Tensor], Tensor]


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight, over the last dimension."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (batch, heads, time, head width)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class LlamaBlock(nn.Module):
    """Attention with grouped key and value heads, and a SwiGLU network, each behind an RMS norm."""

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        kv_width = kv_heads * self.head_width
        self.attention_norm, self.mlp_norm = RMSNorm(width), RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, kv_width, bias=False), nn.Linear(width, kv_width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, width = x.shape
        q = self.query(x).view(n, t, self.heads, self.head_width).transpose(1, 2)
        k = self.key(x).view(n, t, self.kv_heads, self.head_width).transpose(1, 2)
        v = self.value(x).view(n, t, self.kv_heads, self.head_width).transpose(1, 2)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(n, t, width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """(batch, time) tokens to (batch, time, vocab) logits."""

    def __init__(self, layers: int, vocab: int = 512, width: int = 256, heads: int = 8, context: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, heads // 2, 688) for _ in range(layers))
        self.norm, self.head = RMSNorm(width), nn.Linear(width, vocab, bias=False)
        head_width = width // heads
        frequencies = 10000.0 ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(context), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class GPTBlock(nn.Module):
    """Causal attention and a GELU network, each behind a layer norm, with dropout off."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (s.view(n, t, self.heads, width // self.heads).transpose(1, 2) for s in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """(batch, time) tokens to (batch, time, vocab) logits; the embedding is the output layer's weight."""

    def __init__(self, layers: int, vocab: int = 512, width: int = 256, heads: int = 8, context: int = 64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.positions(positions))
        return F.linear(self.norm(x), self.tokens.weight)


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, and the input added."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            conv = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """(n, 3, 32, 32) images to (n, 10) logits; `layers` blocks, of which every third halves the image."""

    def __init__(self, layers: int, channels: int = 16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        blocks = []
        for n in range(layers):
            grows = n % 3 == 2
            blocks.append(ResidualBlock(channels, channels * 2 if grows else channels, 2 if grows else 1))
            channels *= 2 if grows else 1
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class MoEBlock(nn.Module):
    """Each token's two best experts of eight, whose weights are one batched matrix, added to the input."""

    def __init__(self, width: int, hidden: int, experts: int = 8, top_k: int = 2):
        super().__init__()
        self.top_k = top_k
        self.norm, self.gate = RMSNorm(width), nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).reshape(-1, x.shape[-1])
        probs = self.gate(tokens).softmax(-1)
        weights, chosen = probs.topk(self.top_k, dim=-1)
        gates = torch.zeros_like(probs).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("tw,ewh->eth", tokens, self.w1))
        return x + torch.einsum("eth,ehw,te->tw", hidden, self.w2, gates).reshape(x.shape)


class MLP(nn.Module):
    """`layers` times linear and GELU, narrow, so that the time goes into calls and not into arithmetic."""

    def __init__(self, layers: int, width: int = 64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class Tiny(nn.Module):
    """One multiplication and one addition: all that is measured is the way there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + 1.0


def _mean_square(result: Tensor) -> Tensor:
    return result.square().mean()


def _next_token(targets: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _language(model: Callable[[int], nn.Module], layers: int) -> Workload:
    tokens, targets = torch.randint(512, (2, 64)), torch.randint(512, (2, 64))
    return Workload(model(layers), (tokens,), _next_token(targets))


def _regression(model: nn.Module, *shape: int) -> Workload:
    return Workload(model, (torch.randn(*shape),), _mean_square)


def _moe(layers: int) -> Workload:
    return _regression(nn.Sequential(*(MoEBlock(128, 256) for _ in range(layers))), 2, 64, 128)


# Default number of layers, and what makes the workload from a number.
MODELS: dict[str, tuple[int, Callable[[int], Workload]]] = {
    "llama": (4, lambda n: _language(Llama, n)),
    "gpt2": (4, lambda n: _language(GPT, n)),
    "resnet": (6, lambda n: _regression(ResNet(n), 4, 3, 32, 32)),
    "moe": (4, _moe),
    "mlp": (8, lambda n: _regression(MLP(n), 16, 64)),
    "tiny": (1, lambda n: _regression(Tiny(), 4)),
}


def parse(specification: str) -> list[str]:
    """`"llama:4,16"` as `["llama:4", "llama:16"]`; a name without numbers gets the default one.

    Raises:
        ValueError: no model of that name, or a number of layers that is none.
    """
    name, _, depths = specification.partition(":")
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there are {', '.join(MODELS)}")
    numbers = depths.split(",") if depths else [str(MODELS[name][0])]
    if not all(n.isdigit() and int(n) > 0 for n in numbers):
        raise ValueError(f"{specification!r}: numbers of layers are positive integers, separated by commas")
    return [f"{name}:{int(n)}" for n in numbers]


def make(name: str, device: str = "cpu", seed: int = 0) -> Workload:
    """The workload of a name as `parse` gives it; the same weights and batch for the same seed."""
    kind, _, layers = name.partition(":")
    torch.manual_seed(seed)
    made: Any = MODELS[kind][1](int(layers or MODELS[kind][0]))
    if device == "cpu":
        return made
    batch = tuple(b.to(device) for b in made.batch)
    return Workload(made.model.to(device), batch, lambda result: made.loss(result.cpu()))
