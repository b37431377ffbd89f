"""Writes to inputs touch the bytes that the program writes: the pass `reinplace`."""

import pytest
import torch

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
