"""Small networks of the usual kinds: values, gradients, buffers and two steps of training, against eager."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import thunder

pytestmark = pytest.mark.integration


# Networks


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, and the input added."""

    def __init__(self, channels_in: int, channels_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)), inplace=True)
        h = self.bn2(self.conv2(h))
        h += self.shortcut(x)
        return F.relu(h, inplace=True)


class ResNet(nn.Module):
    """(n, 3, 16, 16) images to (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.pool(self.stem(x)))
        return self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))


class LoopLSTM(nn.Module):
    """An LSTM written as a Python loop over time: (n, time, width) to (n, time, width)."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.width = width
        self.x2h = nn.Linear(width, 4 * width)
        self.h2h = nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h = c = x.new_zeros(x.shape[0], self.width)
        outs = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.x2h(x[:, t]) + self.h2h(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs, 1), (h, c)


class TimedBlock(nn.Module):
    """Group norm, SiLU and convolution, with the time embedding added in between."""

    def __init__(self, channels_in: int, channels_out: int, time_width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, channels_in), nn.GroupNorm(2, channels_out)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.time = nn.Linear(time_width, channels_out)
        self.skip = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class SpatialAttention(nn.Module):
    """Self-attention over the pixels of (n, channels, h, w)."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, 3, 2, c // 2, h * w).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(n, c, h, w))


class UNet(nn.Module):
    """The noise in (n, 3, 8, 8) images at times t (n,), as diffusion models predict it."""

    def __init__(self, channels: int = 8, time_width: int = 16):
        super().__init__()
        self.time_width = time_width
        self.embed = nn.Sequential(nn.Linear(time_width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down = TimedBlock(channels, channels, time_width)
        self.downsample = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.middle = TimedBlock(2 * channels, 2 * channels, time_width)
        self.attention = SpatialAttention(2 * channels)
        self.upsample = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.up = TimedBlock(2 * channels, channels, time_width)
        self.out = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        half = self.time_width // 2
        freqs = torch.exp(-torch.arange(half, device=x.device) * (9.2 / half))
        angles = t[:, None].float() * freqs
        emb = self.embed(torch.cat([angles.sin(), angles.cos()], dim=-1))
        skip = self.down(self.stem(x), emb)
        h = self.attention(self.middle(self.downsample(skip), emb))
        h = F.interpolate(self.upsample(h), size=skip.shape[-2:], mode="nearest")
        return self.out(F.silu(self.up(torch.cat([h, skip], dim=1), emb)))


class MixtureOfExperts(nn.Module):
    """Each token goes to `top_k` of the experts, whose weights are batched: (n, time, width) to the same."""

    def __init__(self, width: int = 16, hidden: int = 32, experts: int = 4, top_k: int = 2):
        super().__init__()
        self.top_k, self.experts = top_k, experts
        self.gate = nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.reshape(-1, x.shape[-1])
        probs = self.gate(tokens).softmax(-1)
        weights, chosen = probs.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros_like(probs).scatter_(1, chosen, weights)
        hidden = F.silu(torch.einsum("tw,ewh->eth", tokens, self.w1))
        y = torch.einsum("eth,ehw,te->tw", hidden, self.w2, gates)
        load = F.one_hot(chosen, self.experts).sum(1).float().mean(0)
        return y.reshape(x.shape), (load * probs.mean(0)).sum() * self.experts


# Hugging Face


def _hf(model: str, config: str, **settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, config)(**settings)
    return getattr(transformers, model)(made)


_LLAMA_SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def _llama() -> nn.Module:
    return _hf("LlamaForCausalLM", "LlamaConfig", **_LLAMA_SIZES)


def _qwen2() -> nn.Module:
    return _hf("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA_SIZES)


def _mixtral() -> nn.Module:
    return _hf(
        "MixtralForCausalLM", "MixtralConfig", **_LLAMA_SIZES,
        num_local_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm",
    )  # fmt: skip


def _gpt2() -> nn.Module:
    return _hf(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip


def _bert() -> nn.Module:
    return _hf(
        "BertForMaskedLM", "BertConfig", vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=32,
    )  # fmt: skip


def _t5() -> nn.Module:
    return _hf(
        "T5ForConditionalGeneration", "T5Config", vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip


def _vit() -> nn.Module:
    return _hf(
        "ViTForImageClassification", "ViTConfig", image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=48, num_labels=5, problem_type="single_label_classification",
    )  # fmt: skip


# Inputs


def _tokens(n: int = 2, length: int = 12) -> dict[str, Tensor]:
    ids = torch.randint(0, 99, (n, length))
    return {"input_ids": ids, "labels": ids.clone()}


def _masked_tokens() -> dict[str, Tensor]:
    batch = _tokens()
    mask = torch.ones_like(batch["input_ids"])
    mask[1, -4:] = 0
    return {**batch, "attention_mask": mask}


def _hf_outputs(result: Any) -> list[Tensor]:
    return [result.loss, result.logits]


def _first(result: Any) -> Tensor:
    return result[0]


def _mean_of_squares(result: Any) -> Tensor:
    """A loss that reads every tensor of a result."""
    outs = [result] if isinstance(result, Tensor) else [*_leaves(result)]
    return sum((o.float() ** 2).mean() for o in outs)


def _leaves(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [leaf for part in result for leaf in _leaves(part)]


@dataclass(frozen=True)
class Case:
    """A network, a batch for it, and what of its result is compared and minimised."""

    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Tensor]]
    outputs: Callable[[Any], list[Tensor]] = _leaves
    loss: Callable[[Any], Tensor] = _mean_of_squares


_HF = functools.partial(Case, outputs=_hf_outputs, loss=_first)

CASES = {
    "llama": _HF(_llama, _tokens),
    "llama_masked": _HF(_llama, _masked_tokens),
    "gpt2": _HF(_gpt2, _tokens),
    "qwen2": _HF(_qwen2, _tokens),
    "mixtral": _HF(_mixtral, _tokens),
    "bert": _HF(_bert, _masked_tokens),
    "t5": _HF(_t5, _tokens),
    "vit": _HF(_vit, lambda: {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 3])}),
    "resnet": Case(ResNet, lambda: {"x": torch.randn(4, 3, 16, 16)}),
    "lstm": Case(LoopLSTM, lambda: {"x": torch.randn(3, 6, 8)}),
    "unet": Case(UNet, lambda: {"x": torch.randn(2, 3, 8, 8), "t": torch.tensor([3, 70])}),
    "moe": Case(MixtureOfExperts, lambda: {"x": torch.randn(2, 5, 16)}),
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Any:
    yield
    torch._dynamo.reset()


def _pair(case: Case, **options: Any) -> tuple[nn.Module, nn.Module, dict[str, Tensor]]:
    """The eager network, a compiled copy of it, and a batch."""
    torch.manual_seed(0)
    eager = case.make()
    return eager, thunder.jit(copy.deepcopy(eager), **options), case.batch()


def _assert_same_state(eager: nn.Module, compiled: nn.Module) -> None:
    """Parameters, their gradients and buffers are those of eager."""
    expected = dict(eager.named_parameters())
    actual = dict(compiled.named_parameters())
    assert actual.keys() == expected.keys()
    for name, p in expected.items():
        assert (actual[name].grad is None) == (p.grad is None), name
        torch.testing.assert_close(actual[name], p, msg=lambda m, name=name: f"parameter {name}: {m}", **TOLERANCE)
        if p.grad is not None:
            torch.testing.assert_close(
                actual[name].grad, p.grad, msg=lambda m, name=name: f"gradient of {name}: {m}", **TOLERANCE
            )
    buffers = dict(compiled.named_buffers())
    for name, b in eager.named_buffers():
        torch.testing.assert_close(buffers[name], b, msg=lambda m, name=name: f"buffer {name}: {m}", **TOLERANCE)


TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_training_steps_are_those_of_eager(name: str) -> None:
    case = CASES[name]
    eager, compiled, batch = _pair(case)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (eager, compiled)]
    for step in range(2):
        results = []
        for model, optimizer in zip((eager, compiled), optimizers):
            # Dropout draws from one generator: both sides start from the same state of it.
            torch.manual_seed(step)
            optimizer.zero_grad()
            result = model(**batch)
            case.loss(result).backward()
            results.append(case.outputs(result))
        torch.testing.assert_close(results[1], results[0], **TOLERANCE)
        _assert_same_state(eager, compiled)
        for optimizer in optimizers:
            optimizer.step()
    _assert_same_state(eager, compiled)
    assert thunder.cache_misses(compiled) == 1
    assert thunder.cache_hits(compiled) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_evaluation_is_that_of_eager(name: str) -> None:
    case = CASES[name]
    eager, compiled, batch = _pair(case)
    eager.eval()
    compiled.eval()
    with torch.no_grad():
        expected, actual = case.outputs(eager(**batch)), case.outputs(compiled(**batch))
    torch.testing.assert_close(actual, expected, **TOLERANCE)
    assert not any(a.requires_grad for a in actual)
    assert not thunder.last_backward_traces(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet", "unet", "lstm", "moe"])
def test_gradients_of_inputs_are_those_of_eager(name: str) -> None:
    case = CASES[name]
    eager, compiled, batch = _pair(case)
    grads = []
    for model in (eager, compiled):
        x = batch["x"].clone().requires_grad_()
        case.loss(model(**{**batch, "x": x})).backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], **TOLERANCE)


def test_batch_norm_switches_between_batch_and_running_statistics() -> None:
    eager, compiled, batch = _pair(CASES["resnet"])
    for training in (True, False, True):
        eager.train(training)
        compiled.train(training)
        torch.testing.assert_close(compiled(**batch), eager(**batch), **TOLERANCE)
        _assert_same_state(eager, compiled)
    assert int(compiled.stem[1].num_batches_tracked) == 2


def test_expert_router_sends_every_token_somewhere() -> None:
    """The router's choice (topk, one_hot, scatter) is that of eager, and the auxiliary loss has a gradient."""
    eager, compiled, batch = _pair(CASES["moe"])
    for model in (eager, compiled):
        model(**batch)[1].backward()
    assert compiled.gate.weight.grad.abs().sum() > 0
    torch.testing.assert_close(compiled.gate.weight.grad, eager.gate.weight.grad, **TOLERANCE)
    # Nothing of the auxiliary loss depends on the experts; a gradient of zeros for them is what a joint backward gives.
    assert compiled.w1.grad is None or not compiled.w1.grad.any()
