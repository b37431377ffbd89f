"""Torch functions that check values: they run as a whole, and refuse what they refuse in eager."""

import copy

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


def test_views_that_begin_where_values_say_are_refused():
    with pytest.raises(UnsupportedOpError, match="begins where the values"):
        thunder.jit(lambda x, i: torch.narrow(x, 0, i, 2).sin())(leaf(4), torch.tensor(1))
    with pytest.raises(UnsupportedOpError, match="tensor_split"):
        thunder.jit(lambda x, i: torch.tensor_split(x, i))(leaf(4), torch.tensor([1]))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers(kind):
    torch.manual_seed(0)
    layer = kind(3, 4, num_layers=2, bidirectional=True)
    compiled = thunder.jit(layer)
    x = leaf(5, 2, 3)
    for length in (5, 2):
        results = []
        for run in (layer, compiled):
            out, state = run(x[:length])
            state = state if isinstance(state, tuple) else (state,)
            loss = out.sin().sum() + sum(s.cos().sum() for s in state)
            results.append((out, *state, *torch.autograd.grad(loss, [x, *layer.parameters()])))
        torch.testing.assert_close(*results)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
    with pytest.raises(DataDependentControlFlowError):
        compiled(packed)


def test_cumulative_average_of_batch_norm():
    norm = torch.nn.BatchNorm1d(3, momentum=None)
    expected = copy.deepcopy(norm)
    compiled = thunder.jit(norm)
    for _ in range(3):
        x = leaf(4, 3)
        result, want = compiled(x), expected(x)
        torch.testing.assert_close(result, want)
        gradients = (torch.autograd.grad(out.sin().sum(), x)[0] for out in (result, want))
        torch.testing.assert_close(*gradients)
        torch.testing.assert_close(list(norm.buffers()), list(expected.buffers()))
    assert thunder.cache_misses(compiled) == 1


def test_a_branch_on_a_comparison_is_refused():
    def branch(x):
        return x * 2 if torch.equal(x, x) else x

    with pytest.raises(DataDependentControlFlowError, match=r"if torch\.equal\(x, x\)"):
        thunder.jit(branch)(leaf(4))


def test_a_function_is_known_under_any_name():
    covariance = torch.cov
    x = leaf(3, 8)
    torch.testing.assert_close(thunder.jit(lambda x: covariance(x) * 2)(x), torch.cov(x) * 2)


def rows(x):
    return x[x[:, 0] > 0]


def written(x):
    y = x[x > 0] * 2
    y[:2].mul_(3)
    return y


def assigned(x):
    y = x * 2
    y[x.nonzero()[:3, 0]] = 0.0
    return y


def sliced(x):
    n = (x[:, 0] > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    return x[:n], x[n:].sin(), x.narrow(0, 0, n)


def least_squares(x):
    return torch.linalg.lstsq(x, x[:, :1].exp(), driver="gelsd")


SIZED_BY_VALUES = {
    "comparisons": lambda x: (torch.allclose(x, x.abs()), torch.equal(x, x.relu()), x * 2),
    "nonzero": lambda x: x.nonzero(as_tuple=True),
    "classes": lambda x: F.one_hot((x > 0).long()) * x.unsqueeze(-1),
    "classes by keyword": lambda x: F.one_hot((x > 0).long(), num_classes=-1) * x.unsqueeze(-1),
    "views": lambda x: (x.masked_select(x > 0), (x[x > 0] * 2)[1:], rows(x).unsqueeze(1).expand(-1, 3, -1)),
    "outputs that share memory": lambda x: (lambda y: (y, y.t(), y[:, 1:]))(rows(x)),
    "slice of a mask": written,
    "assignment": assigned,
    "slices of an input": sliced,
    "normalization": lambda x: (rows(x).softmax(-1), F.layer_norm(rows(x), (3,))),
    "reductions": lambda x: (rows(x).sum(0), rows(x).mean(), rows(x) @ x.t(), torch.cat([rows(x), x])),
    "least squares": least_squares,
}
SIZED_INPUTS = ([[1.0, -2.0, 3.0], [-1.0, 2.0, 2.0], [2.0, 1.0, 0.0], [1.0, 1.0, 5.0]], [[-1.0, 0.0, 2.0]] * 4)


def tensors_of(result):
    return [o for o in result if isinstance(o, torch.Tensor)] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", SIZED_BY_VALUES)
def test_sizes_and_numbers_that_depend_on_values(name, requires_grad):
    fn = SIZED_BY_VALUES[name]
    compiled = thunder.jit(fn)
    for values in SIZED_INPUTS:
        x = torch.tensor(values, requires_grad=requires_grad)
        if name == "least squares" and values is SIZED_INPUTS[1]:
            x = torch.cat([x[:, :2], torch.ones(4, 1)], 1).detach()  # not of full rank: no residuals
            x.requires_grad_(requires_grad)
        expected, result = fn(x), compiled(x)
        assert str(type(result)) == str(type(expected))
        for got, want in zip(tensors_of(result), tensors_of(expected), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
            assert got.requires_grad == want.requires_grad
            shares = want.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            assert (got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) == shares
        assert [o for o in result if isinstance(o, bool)] == [o for o in expected if isinstance(o, bool)]
        tracked = [(g, w) for g, w in zip(tensors_of(result), tensors_of(expected)) if w.requires_grad]
        if tracked and name != "least squares":
            gradients = [torch.autograd.grad(sum(t.sin().sum() for t in side), x)[0] for side in zip(*tracked)]
            torch.testing.assert_close(*gradients, equal_nan=True)
    assert thunder.cache_misses(compiled) == 1
    for trace in thunder.last_traces(compiled):
        assert "def " in str(trace)
