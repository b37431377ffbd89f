"""Matrix products."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    """The contraction of two operands: batch, kept and summed names to one (batched) matrix product."""
    batch = [n for n in left if n in right and n in out]
    summed = [n for n in left if n in right and n not in out]
    a, left = _summed(a, left, [n for n in left if n not in right and n not in out])
    b, right = _summed(b, right, [n for n in right if n not in left + "".join(summed) and n not in out])
    rows = [n for n in left if n not in right]
    columns = [n for n in right if n not in left]
    sizes = dict(zip(left, a.shape, strict=True)) | dict(zip(right, b.shape, strict=True))
    if not summed:
        return clang.mul(_with_names(a, left, out), _with_names(b, right, out))
    if not batch:
        batch = spread = _spread_names(a, left, rows, right, columns, summed, sizes)
        a, left = _repeated(a, left, [n for n in spread if n in columns], sizes)
        b, right = _repeated(b, right, [n for n in spread if n in rows], sizes)
        rows, columns = ([n for n in names if n not in spread] for names in (rows, columns))

    def matrices(x: TensorProxy, names: str, *groups: list[str]) -> TensorProxy:
        groups = groups if groups[0] else groups[1:]
        x = clang.transpose(x, [names.index(n) for group in groups for n in group])
        return clang.reshape(x, [math.prod(sizes[n] for n in group) for group in groups])

    first, second = matrices(a, left, batch, rows, summed), matrices(b, right, batch, summed, columns)
    product = bmm(first, second) if batch else mm(first, second)
    names = (*batch, *rows, *columns)
    product = clang.reshape(product, tuple(sizes[n] for n in names))
    return clang.transpose(product, [names.index(n) for n in out])


_ENOUGH_COLUMNS = (32, 128)


def _spread_names(
    a: TensorProxy, left: str, rows: list[str], right: str, columns: list[str], summed: list[str], sizes: dict[str, Any]
) -> list[str]:
    """Names of one operand that one product for each of them saves from being copied; the other operand is repeated.

    In `tw,ewh->eth` no matrix has the columns `eh` without a copy of the right operand; each `e` has one as it is.
    Where that leaves products of too few columns, which take longer, there are none. Measured with float32 on CPU,
    forward and gradients against the single product, for `t`, `w`, `e` and `h`: 0.91 for (128, 128, 8, 256), 0.85 for
    (128, 512, 8, 512), 0.59 for (8, 128, 8, 256), 0.95 for (64, 64, 4, 64), 1.08 for (512, 64, 12, 64), 1.27 for
    (128, 128, 64, 32). Not in half precision, where the gradient of what is repeated is a sum of rounded products.
    """
    if a.dtype not in (dtypes.float32, dtypes.float64) or a.device.type != "cpu":
        return []
    if any(type(s) is not int for s in sizes.values()):
        return []
    fewest, most = _ENOUGH_COLUMNS
    for names, kept, other in ((right, columns, rows), (left, rows, columns)):
        places = [names.index(n) for n in summed]
        if not places:
            continue
        before = [n for n in kept if names.index(n) < min(places)]
        after = [n for n in kept if names.index(n) > max(places)]
        is_split = bool(before and after) and len(before) + len(after) == len(kept)
        beside = math.prod(sizes[n] for n in other)
        if is_split and math.prod(sizes[n] for n in after) >= max(fewest, min(most, beside)):
            return before
    return []


def _with_names(x: TensorProxy, names: str, wanted: str) -> TensorProxy:
    """A view with a dim for each of the wanted names, of size 1 where `x` has none."""
    x = clang.transpose(x, [names.index(n) for n in wanted if n in names])
    return clang.unsqueeze(x, [place for place, n in enumerate(wanted) if n not in names])


def _repeated(x: TensorProxy, names: str, new: list[str], sizes: dict[str, Any]) -> tuple[TensorProxy, str]:
    """A view with further dims, along which its elements repeat."""
    if not new:
        return x, names
    return clang.expand(x, *(sizes[n] for n in new), *x.shape), "".join(new) + names


def _summed(a: TensorProxy, names: str, drop: list[str]) -> tuple[TensorProxy, str]:
    if not drop:
        return a, names
    return prims.sum(a, tuple(names.index(n) for n in drop)), "".join(n for n in names if n not in drop)


def _alone(a: TensorProxy, names: str, out: str) -> TensorProxy:
    """One operand with names summed and reordered."""
    a, names = _summed(a, names, [n for n in names if n not in out])
    return clang.transpose(a, [names.index(n) for n in out])


class _Step(NamedTuple):
    """One contraction: operands `left` and `right` of the list leave it, and their product joins it at the end."""

    places: tuple[int, int]
    left: str
    right: str
    result: str

    @property
    def is_product(self) -> bool:
        """Whether anything is summed over; an elementwise multiplication otherwise."""
        return any(n in self.right and n not in self.result for n in self.left)


def _plan(terms: list[str], out: str, shapes: list[tuple]) -> list[_Step]:
    """The contractions of an einsum of two terms or more, two by two in opt_einsum's order."""
    path = [tuple(range(len(terms)))]
    if len(terms) > 2:
        path = opt_einsum.contract_path(f"{','.join(terms)}->{out}", *shapes, shapes=True)[0]
    plan = []
    terms = list(terms)
    for together in path:
        # The operands of one step of the path, taken from the list; what they make stands at its end.
        places = list(together)
        while len(places) > 1:
            first, second, *rest = places
            left, right = terms[first], terms[second]
            terms = [t for n, t in enumerate(terms) if n not in (first, second)]
            wanted = set(out).union(*terms)
            result = "".join(n for n in dict.fromkeys(left + right) if n in wanted) if terms else out
            plan.append(_Step((first, second), left, right, result))
            terms.append(result)
            places = [len(terms) - 1, *(n - (n > first) - (n > second) for n in rest)]
    return plan


def contract(equation: str, operands: list[TensorProxy]) -> TensorProxy:
    """An einsum of explicit form in which no name is twice in a term, contracted two by two in opt_einsum's order."""
    inputs, out = equation.split("->")
    terms = inputs.split(",")
    if len(operands) == 1:
        return _alone(operands[0], terms[0], out)
    for step in _plan(terms, out, [tuple(int(s) for s in o.shape) for o in operands]):
        a, b = (operands[n] for n in step.places)
        operands = [o for n, o in enumerate(operands) if n not in step.places]
        operands.append(_pairwise(a, step.left, b, step.right, step.result))
    return operands[0]


def _parsed(equation: Any, operands: tuple) -> tuple[list[str], str, list[TensorProxy]]:
    """Terms, result and operands of an einsum. Raises NoDecompositionError for those that stay whole."""
    if not isinstance(equation, str):
        raise NoDecompositionError("sublists in the place of an equation")
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    inputs, out, _ = opt_einsum.parser.parse_einsum_input(
        [equation.replace(" ", ""), *(tuple(int(s) for s in o.shape) for o in given)], shapes=True
    )
    terms = inputs.split(",")
    if any(len(set(t)) != len(t) for t in terms) or any(dtypes.is_exact_dtype(o.dtype) for o in given):
        raise NoDecompositionError("a diagonal, or integers, in an einsum")
    sizes: dict[str, set] = {}
    for term, o in zip(terms, given, strict=True):
        for n, s in zip(term, o.shape, strict=True):
            sizes.setdefault(n, set()).add(s)
    if any(len(s) > 1 for s in sizes.values()):
        raise NoDecompositionError("sizes that broadcast in an einsum")
    return terms, out, given


@op(torch.einsum)
def einsum(equation: Any, *operands: Any) -> TensorProxy:
    """Products of the operands' elements summed over the names that the result has not, in Einstein's notation."""
    terms, out, given = _parsed(equation, operands)
    return contract(f"{','.join(terms)}->{out}", given)


def ends_in_product(equation: Any, *operands: Any) -> bool:
    """Whether an einsum ends in a matrix product, whose strides do not follow the operands'."""
    try:
        terms, out, given = _parsed(equation, operands)
    except NoDecompositionError:
        return False
    return len(terms) > 1 and _plan(terms, out, [tuple(int(s) for s in o.shape) for o in given])[-1].is_product
