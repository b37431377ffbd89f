"""Writes to inputs touch the bytes that the program writes: the pass `reinplace`."""

import copy

import pytest
import torch
import torch.nn.functional as F

import thunder


def cache_row(cache, row):
    cache[2] = row
    return cache[:3].sum()


def views(cache, row):
    cache[1].mul_(2)
    cache[:, 0].add_(row)
    return row * 2


def twice(cache, row):
    cache.add_(row)
    y = cache.exp()
    cache.mul_(2)
    return y


def copied(cache, row):
    cache.copy_((row * 2).expand(3, 3))
    return row + 1


def older_value_read_later(cache, row):
    old = cache[0]
    kept = old * 1
    cache.add_(1)
    return kept, old * 2, row * cache


def statistics(cache, row):
    cache.mul_(0.9).add_(row * 0.1)
    return row * cache


PROGRAMS = [cache_row, views, twice, copied, older_value_read_later, statistics]


def _inputs(requires_grad):
    torch.manual_seed(0)
    return torch.rand(3, 3), torch.rand(3, requires_grad=requires_grad)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_values_and_memory(fn):
    got, want = _inputs(False), _inputs(False)
    pointer = got[0].data_ptr()
    compiled = thunder.jit(fn)
    torch.testing.assert_close(compiled(*got), fn(*want))
    torch.testing.assert_close(got[0], want[0])
    assert got[0].data_ptr() == pointer
    assert "copy_(cache" not in str(thunder.last_traces(compiled)[-1])


def _last_names(fn, *args):
    compiled = thunder.jit(fn)
    compiled(*args)
    return [b.sym.name for b in thunder.last_traces(compiled)[-1].bound_symbols]


def test_row_write_writes_the_row_only():
    assert "setitem_" in _last_names(cache_row, *_inputs(False))
    assert "copy_" not in _last_names(cache_row, *_inputs(False))


def test_elementwise_write_uses_the_inplace_kernel():
    names = _last_names(twice, *_inputs(False))
    assert "add_" in names
    assert "mul_" in names
    assert "copy_" not in names


def test_copy_needs_no_clone():
    names = _last_names(copied, *_inputs(False))
    assert names.count("copy_") == 1
    assert "clone" not in names


def saved_copy(cache, weight):
    y = cache.clone() * weight
    cache.mul_(2)
    return y.sum()


def test_value_that_backward_needs_survives_the_write():
    got, want = _inputs(True), _inputs(True)
    thunder.jit(saved_copy)(*got).backward()
    saved_copy(*want).backward()
    torch.testing.assert_close(got[1].grad, want[1].grad)
    torch.testing.assert_close(got[0], want[0])


def test_write_over_a_saved_value_is_refused_as_in_eager():
    def overwritten(cache, weight):
        y = cache * weight
        cache.mul_(2)
        return y.sum()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        thunder.jit(overwritten)(*_inputs(True)).backward()


class Twice(torch.nn.Module):
    """One batch norm on two values."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.norm(x).relu())


class Before(torch.nn.Module):
    """Reads the statistics before they are updated."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)

    def forward(self, x):
        mean = self.norm.running_mean.clone()
        return self.norm(x) + mean.view(-1, 1, 1)


class After(Before):
    """Reads the statistics after they are updated."""

    def forward(self, x):
        return self.norm(x) + self.norm.running_mean.view(-1, 1, 1)


class Own(torch.nn.Module):
    """Statistics of which one is given only by a view of it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("both", torch.ones(2, 3))

    def forward(self, x):
        return F.batch_norm(x, self.both[0], self.both[1], training=True)


NORMS = {
    "batch norm": lambda: torch.nn.BatchNorm2d(3),
    "instance norm": lambda: torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    "between": lambda: torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)),
    "cumulative": lambda: torch.nn.BatchNorm2d(3, momentum=None),
    "twice": Twice,
    "before": Before,
    "after": After,
    "views": Own,
}
WRITTEN_AT_ONCE = ("batch norm", "between", "before")
OPTIONS = [{}, {"skip_inplace_functionalization": True}, {"executors": ["torchcompile", "torch"]}]


@pytest.mark.parametrize("options", OPTIONS, ids=["functional", "aliases", "fused"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_running_statistics(name, grad, options):
    torch.manual_seed(0)
    expected = NORMS[name]()
    module = copy.deepcopy(expected)
    compiled = thunder.jit(module, **options)
    for _ in range(2):
        x = torch.randn(4, 3, 5, 5)
        given = [x.clone().requires_grad_(grad) for _ in range(2)]
        with torch.set_grad_enabled(grad):
            results = [f(v) for f, v in zip((expected, compiled), given, strict=True)]
        torch.testing.assert_close(*results)
        if grad:
            for r in results:
                r.square().mean().backward()
            torch.testing.assert_close(*[v.grad for v in given])
    for theirs, ours in zip(expected.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(dict(module.named_buffers()), dict(expected.named_buffers()))
    names = [n.sym.name for n in thunder.last_traces(compiled)[-1].bound_symbols]
    if name in WRITTEN_AT_ONCE and not options:
        assert "copy_" not in names
        assert "run_on_clones" not in names


def test_two_forwards_before_a_backward():
    norm = torch.nn.BatchNorm1d(3)
    compiled = thunder.jit(norm)
    first, second = (compiled(torch.randn(4, 3)).square().sum() for _ in range(2))
    (first + second).backward()
    assert norm.num_batches_tracked == 2


@pytest.mark.parametrize("module", [torch.nn.Embedding, torch.nn.EmbeddingBag])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=["functional", "aliases", "fused"])
def test_embeddings_renormalize_their_rows(module, requires_grad, options):
    torch.manual_seed(0)
    expected = module(5, 4, max_norm=0.5, norm_type=1)
    expected.weight.requires_grad_(requires_grad)
    ours = copy.deepcopy(expected)
    compiled = thunder.jit(ours, **options)
    indices = [torch.tensor([0, 1, 1])] + ([torch.tensor([0, 2])] if module is torch.nn.EmbeddingBag else [])
    results = expected(*indices), compiled(*indices)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(ours.weight, expected.weight)
    assert not torch.equal(ours.weight[4], ours.weight[0])
    if requires_grad:
        for r in results:
            r.square().sum().backward()
        torch.testing.assert_close(ours.weight.grad, expected.weight.grad)
    assert compiled(*indices).requires_grad == requires_grad
    names = [n.sym.name for n in thunder.last_traces(compiled)[-1].bound_symbols]
    assert ("embedding_renorm_" in names) == ("copy_" not in names) == ("skip_inplace_functionalization" not in options)
