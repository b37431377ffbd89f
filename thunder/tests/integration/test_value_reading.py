"""Torch functions that check values: they run as a whole, and refuse what they refuse in eager."""

import pytest
import torch
import torch.nn.functional as F

import thunder
from thunder.core.errors import DataDependentControlFlowError, UnsupportedOpError


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def ctc(x, targets):
    return F.ctc_loss(x.log_softmax(2), targets, (10,) * 3, (4,) * 3)


PROGRAMS = {
    "cov": (lambda x: torch.cov(x * 2, fweights=torch.ones(8, dtype=torch.int64)), leaf(3, 8)),
    "corrcoef": (lambda x: torch.corrcoef(x).sin(), leaf(3, 8)),
    "gaussian_nll_loss": (lambda x: F.gaussian_nll_loss(x, x * 2, x.exp()), leaf(3, 8)),
    "ctc_loss": (ctc, leaf(10, 3, 6), torch.randint(1, 6, (3, 4))),
    "istft": (
        lambda x: torch.istft(torch.stft(x, 16, return_complex=True, window=torch.ones(16)), 16, window=torch.ones(16)),
        leaf(2, 48),
    ),
    "combinations": (lambda x: torch.combinations(x, 2, with_replacement=True).sin(), leaf(4)),
    "one_hot": (lambda x, i: F.one_hot(i, 7) * x.sum(), leaf(3), torch.tensor([1, 6])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name):
    fn, x, *others = PROGRAMS[name]
    compiled = thunder.jit(fn)
    expected = fn(x, *others)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    for _ in range(2):
        result = compiled(x, *others)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], gradient)
    assert thunder.cache_misses(compiled) == 1


def test_loss_module():
    loss = torch.nn.GaussianNLLLoss()
    x = leaf(3)
    torch.testing.assert_close(thunder.jit(loss)(x, x * 2, x.exp()), loss(x, x * 2, x.exp()))


def test_what_eager_refuses():
    with pytest.raises(ValueError, match="negative"):
        thunder.jit(lambda x: F.gaussian_nll_loss(x, x, -x.exp()))(leaf(3))


def test_shapes_that_depend_on_values_are_refused():
    with pytest.raises(DataDependentControlFlowError, match=r"F\.one_hot"):
        thunder.jit(lambda i: F.one_hot(i))(torch.tensor([1, 2]))
    with pytest.raises(UnsupportedOpError, match="begins where the values"):
        thunder.jit(lambda x, i: torch.narrow(x, 0, i, 2).sin())(leaf(4), torch.tensor(1))
