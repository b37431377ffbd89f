"""Matrix products."""

from __future__ import annotations

from typing import Any

import opt_einsum
import torch
import torch.nn.functional as F

from thunder import clang
from thunder.clang.utils import Kind, maybe_convert_to_dtype
from thunder.core import dtypes, prims
from thunder.core.baseutils import check
from thunder.core.errors import NoDecompositionError, ThunderRuntimeError
from thunder.core.promotion import elementwise_type_promotion
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import OpTags
from thunder.torch.op import op

_TAGS = (OpTags.MATMUL_OP, OpTags.DONT_AUTO_RECOMPUTE_IN_BACKWARD)


def _ranks(what: str, *expected: tuple[TensorProxy, int]) -> None:
    for a, rank in expected:
        check(a.ndim == rank, lambda a=a, r=rank: f"{what}: expected {r} dims, got {a.ndim}", ThunderRuntimeError)


@op(torch.matmul, torch.linalg.matmul, tags=_TAGS)
def matmul(input: TensorProxy, other: TensorProxy) -> TensorProxy:
    """The matrix product; batch dims broadcast, one dim counts as a vector."""
    return prims.matmul(input, other)


@op(torch.mm, tags=_TAGS)
def mm(input: TensorProxy, mat2: TensorProxy) -> TensorProxy:
    """The product of two matrices."""
    _ranks("mm", (input, 2), (mat2, 2))
    return prims.matmul(input, mat2)


@op(torch.bmm, tags=_TAGS)
def bmm(input: TensorProxy, mat2: TensorProxy) -> TensorProxy:
    """The products of two batches of matrices of one batch size."""
    _ranks("bmm", (input, 3), (mat2, 3))
    check(input.shape[0] == mat2.shape[0], lambda: "bmm: the batch sizes differ", ThunderRuntimeError)
    return prims.matmul(input, mat2)


@op(torch.mv, tags=_TAGS)
def mv(input: TensorProxy, vec: TensorProxy) -> TensorProxy:
    """The product of a matrix and a vector."""
    _ranks("mv", (input, 2), (vec, 1))
    return prims.matmul(input, vec)


@op(torch.dot, tags=_TAGS)
def dot(input: TensorProxy, tensor: TensorProxy) -> TensorProxy:
    """The inner product of two vectors."""
    _ranks("dot", (input, 1), (tensor, 1))
    return prims.matmul(input, tensor)


@op(torch.outer, torch.ger)
def outer(input: TensorProxy, vec2: TensorProxy) -> TensorProxy:
    """The products of each element of one vector with each of the other."""
    _ranks("outer", (input, 1), (vec2, 1))
    return clang.mul(clang.unsqueeze(input, 1), vec2)


@op(F.linear, samples="nn.functional.linear", tags=_TAGS)
def linear(input: TensorProxy, weight: TensorProxy, bias: TensorProxy | None = None) -> TensorProxy:
    """input @ weight.T + bias, over the last dim."""
    return prims.linear(input, weight, bias)


def _scaled_sum(product: TensorProxy, a: TensorProxy, beta: Any, alpha: Any) -> TensorProxy:
    """beta * a + alpha * product in the product's dtype; `a` does not count where `beta` is 0."""
    kind = product.dtype
    if dtypes.is_exact_dtype(kind) and any(isinstance(x, float) for x in (beta, alpha)):
        raise NoDecompositionError("scales that are rounded to integers")
    computation, _ = elementwise_type_promotion(product, a, type_promotion_kind=Kind.DEFAULT)
    product = maybe_convert_to_dtype(product, computation)
    scaled = product if alpha == 1 else clang.mul(product, alpha)
    if beta == 0:
        return maybe_convert_to_dtype(scaled, kind)
    a = maybe_convert_to_dtype(a, computation)
    a = a if beta == 1 else clang.mul(a, beta)
    return maybe_convert_to_dtype(clang.add(a, scaled), kind)


@op(torch.addmm, tags=_TAGS)
def addmm(input: TensorProxy, mat1: TensorProxy, mat2: TensorProxy, *, beta: Any = 1, alpha: Any = 1) -> TensorProxy:
    """beta * input + alpha * mat1 @ mat2."""
    _ranks("addmm", (mat1, 2), (mat2, 2))
    return _scaled_sum(prims.matmul(mat1, mat2), input, beta, alpha)


@op(torch.addmv, tags=_TAGS)
def addmv(input: TensorProxy, mat: TensorProxy, vec: TensorProxy, *, beta: Any = 1, alpha: Any = 1) -> TensorProxy:
    """beta * input + alpha * mat @ vec."""
    _ranks("addmv", (mat, 2), (vec, 1))
    return _scaled_sum(prims.matmul(mat, vec), input, beta, alpha)


@op(torch.baddbmm, tags=_TAGS)
def baddbmm(
    input: TensorProxy, batch1: TensorProxy, batch2: TensorProxy, *, beta: Any = 1, alpha: Any = 1
) -> TensorProxy:
    """beta * input + alpha * batch1 @ batch2, for batches of matrices."""
    _ranks("baddbmm", (batch1, 3), (batch2, 3))
    return _scaled_sum(prims.matmul(batch1, batch2), input, beta, alpha)


@op(torch.linalg.multi_dot, samples="linalg.multi_dot")
def multi_dot(tensors: Any) -> TensorProxy:
    """The product of several matrices, in the order that takes the fewest multiplications."""
    if any(t.ndim != 2 for t in tensors):
        raise NoDecompositionError("vectors at the ends")
    names = [opt_einsum.get_symbol(n) for n in range(len(tensors) + 1)]
    terms = ",".join(names[n] + names[n + 1] for n in range(len(tensors)))
    return contract(f"{terms}->{names[0]}{names[-1]}", list(tensors))


def _pairwise(a: TensorProxy, left: str, b: TensorProxy, right: str, out: str) -> TensorProxy:
    """The contraction of two operands: batch, kept and summed names to one batched matrix product."""
    batch = [n for n in left if n in right and n in out]
    summed = [n for n in left if n in right and n not in out]
    a, left = _summed(a, left, [n for n in left if n not in right and n not in out])
    b, right = _summed(b, right, [n for n in right if n not in left + "".join(summed) and n not in out])
    rows = [n for n in left if n not in right]
    columns = [n for n in right if n not in left]
    sizes = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))

    def size(names: list[str]) -> Any:
        total: Any = 1
        for n in names:
            total = total * sizes[n]
        return total

    first = clang.transpose(a, [left.index(n) for n in (*batch, *rows, *summed)])
    second = clang.transpose(b, [right.index(n) for n in (*batch, *summed, *columns)])
    first = clang.reshape(first, (size(batch), size(rows), size(summed)))
    second = clang.reshape(second, (size(batch), size(summed), size(columns)))
    product = prims.matmul(first, second)
    names = (*batch, *rows, *columns)
    product = clang.reshape(product, tuple(sizes[n] for n in names))
    return clang.transpose(product, [names.index(n) for n in out])


def _summed(a: TensorProxy, names: str, drop: list[str]) -> tuple[TensorProxy, str]:
    if not drop:
        return a, names
    return prims.sum(a, tuple(names.index(n) for n in drop)), "".join(n for n in names if n not in drop)


def _alone(a: TensorProxy, names: str, out: str) -> TensorProxy:
    """One operand with names summed and reordered."""
    a, names = _summed(a, names, [n for n in names if n not in out])
    return clang.transpose(a, [names.index(n) for n in out])


def contract(equation: str, operands: list[TensorProxy]) -> TensorProxy:
    """An einsum of explicit form in which no name is twice in a term, contracted two by two in opt_einsum's order."""
    inputs, out = equation.split("->")
    terms = inputs.split(",")
    if len(operands) == 1:
        return _alone(operands[0], terms[0], out)
    if len(operands) > 2:
        shapes = [tuple(int(s) for s in o.shape) for o in operands]
        path = opt_einsum.contract_path(equation, *shapes, shapes=True)[0]
    else:
        path = [(0, 1)]
    for step in path:
        taken = [(operands[n], terms[n]) for n in step]
        operands = [o for n, o in enumerate(operands) if n not in step]
        terms = [t for n, t in enumerate(terms) if n not in step]
        needed = set(out).union(*terms)
        while len(taken) > 1:
            (a, left), (b, right), *taken = taken
            wanted = needed.union(*(t for _, t in taken))
            result = "".join(n for n in dict.fromkeys(left + right) if n in wanted)
            taken.insert(0, (_pairwise(a, left, b, right, result), result))
        operands.append(taken[0][0])
        terms.append(taken[0][1])
    return _alone(operands[0], terms[0], out)


@op(torch.einsum)
def einsum(equation: Any, *operands: Any) -> TensorProxy:
    """Products of the operands' elements summed over the names that the result has not, in Einstein's notation."""
    if not isinstance(equation, str):
        raise NoDecompositionError("sublists in the place of an equation")
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    parsed_inputs, out, _ = opt_einsum.parser.parse_einsum_input(
        [equation.replace(" ", ""), *(tuple(int(s) for s in o.shape) for o in given)], shapes=True
    )
    terms = parsed_inputs.split(",")
    if any(len(set(t)) != len(t) for t in terms) or any(dtypes.is_exact_dtype(o.dtype) for o in given):
        raise NoDecompositionError("a diagonal, or integers, in an einsum")
    sizes: dict[str, set] = {}
    for term, o in zip(terms, given, strict=True):
        for n, s in zip(term, o.shape, strict=True):
            sizes.setdefault(n, set()).add(s)
    if any(len(s) > 1 for s in sizes.values()):
        raise NoDecompositionError("sizes that broadcast in an einsum")
    return contract(f"{parsed_inputs}->{out}", given)
