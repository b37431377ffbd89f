"""The executor of torch's fused attention kernels."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.executors.sdpaex import SpdaBackend, sdpa_ex


def claimed(fn, *args, **options):
    compiled = thunder.jit(fn, executors=[sdpa_ex], **options)
    torch.testing.assert_close(compiled(*args), fn(*args))
    return compiled, any(n.sym.executor is sdpa_ex for n in thunder.last_traces(compiled)[-1].bound_symbols)


def heads(requires_grad=False):
    return [torch.randn(2, 4, 8, 16, requires_grad=requires_grad) for _ in range(3)]


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_claims_what_a_fused_kernel_takes():
    assert torch._fused_sdp_choice(*heads()) == SpdaBackend.FLASH_ATTENTION.value
    assert claimed(causal, *heads())[1]


def test_gradients_use_the_fused_kernels():
    inputs = heads(requires_grad=True)
    compiled, _ = claimed(causal, *inputs)
    expected = torch.autograd.grad(causal(*inputs).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs).sum(), inputs), expected)
    assert "flash_attention_for_cpu_backward" in thunder.last_backward_traces(compiled)[-1].python()


def test_leaves_what_none_takes_to_the_next_executor():
    q, k, v = (t[0, 0] for t in heads())  # no heads: scores are multiplied out
    assert not claimed(F.scaled_dot_product_attention, q, k, v)[1]


def test_says_why_on_request():
    q, k, v = (t[0, 0] for t in heads())
    with pytest.warns(UserWarning, match="no fused attention kernel takes"):
        claimed(F.scaled_dot_product_attention, q, k, v, sdpa_debug=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        claimed(F.scaled_dot_product_attention, q, k, v)
