"""Small programs from a list of numbers, as Python source: what hypothesis draws and shrinks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from thunder.tests.inplace import functions

NAMESPACE = {"torch": torch, "F": F, **{n: getattr(functions, n) for n in dir(functions) if n[0].isupper()}}

# {a}, {b}, {c}: variables so far. {v}: a new variable.
PURE = (
    "{v} = {a}.sin()",
    "{v} = {a} + {b}",
    "{v} = {a} * {b}",
    "{v} = {a}.clone()",
    "{v} = {a}.sigmoid() * 2",
    "{v} = torch.where({a} > {b}, {a}, {b})",
    "{v} = {a} - 0.5",
    "{v} = {a}.cos().mul({b})",
    "{v} = {a}.sum(0)",
    "{v} = torch.cat([{a}, {a}])",
    "{v} = {a}.tanh()",
    "{v} = torch.stack([{a}, {b}])",
    "{v} = torch.zeros_like({a})",
    "{v} = {a}.cumsum(0)",
    "{v} = {a}.sqrt()",
    "{v} = torch.maximum({a}, {b})",
    "{v} = {a}.flip(0)",
    "{v} = {a}.mean()",
    "{v} = torch.rand_like({a})",
    "{v} = F.dropout({a}, 0.5)",
    "{v} = {a} @ {b}",
    "{v} = {a}[[0, 0]]",
    "{v} = {a}.new_ones({a}.shape)",
    "{v} = torch.full_like({a}, 0.5)",
)
VIEWS = (
    "{v} = {a}[0]",
    "{v} = {a}[1:]",
    "{v} = {a}[..., :2]",
    "{v} = {a}.t()",
    "{v} = {a}.view(-1)",
    "{v} = {a}.reshape(-1)",
    "{v} = {a}.unsqueeze(0)",
    "{v} = {a}.transpose(0, -1)",
    "{v} = {a}.expand(2, *{a}.shape)",
    "{v} = {a}.narrow(0, 0, 1)",
    "{v} = {a}.diagonal()",
    "{v} = {a}.detach()",
    "{v} = {a}.split(1)[0]",
    "{v} = {a}.unbind(0)[-1]",
    "{v} = {a}.chunk(2)[0]",
    "{v} = {a}.flatten()",
    "{v} = {a}.squeeze()",
    "{v} = {a}.as_strided((2, 2), (1, 1))",
    "{v} = {a}.view_as({a})",
    "{v} = {a}.detach()",
    "{v} = {a}.contiguous()",
    "{v} = {a}.unfold(0, 2, 1)",
    "{v} = {a}.movedim(0, -1)",
    "{v} = {a}.mT",
    "{v} = {a}.select(-1, 0)",
    "{v}, {v}b = {a}.chunk(2)",
    "{v} = {a}.expand_as({b})",
    "{v} = {a}[:, None]",
    "{v} = {a}[::2]",
    "{v} = {a}.alias() if hasattr({a}, 'alias') else {a}.view({a}.shape)",
    "{v} = {a}.to(torch.float64)",
    "{v}, *{v}b = {a}.unbind(-1); {v}b = {v}b[0]",
    "{v} = {a}.reshape({a}.shape[::-1])",
)
WRITES = (
    "{a}.add_({b})",
    "{a}.mul_({b})",
    "{a}.sin_()",
    "{a}.copy_({b})",
    "{a}.zero_()",
    "{a}.fill_(0.5)",
    "{a}[0] = {b}",
    "{a}[{a} > 0] = 0.25",
    "{a} += {b}",
    "{a}.masked_fill_({a} > 0.5, 0.5)",
    "{a}.clamp_(-0.5, 0.5)",
    "{a} *= 2",
    "{a}.index_add_(0, torch.tensor([0]), {b}[:1])",
    "{a}.neg_()",
    "{a}[..., 0] = {b}[..., 0]",
    "{a}[-1:] += {b}[-1:]",
    "torch.add({b}, {c}, out={a})",
    "F.relu({a}, inplace=True)",
    "{a}.index_fill_(0, torch.tensor([0]), 0.75)",
    "{a}.lerp_({b}, 0.25)",
    "{a}.addcmul_({b}, {c})",
    "{a}.cumsum_(0)",
    "{a}.uniform_()",
    "{a}[[0]] = {b}[[0]].clone()",
    "{a}.scatter_add_(0, torch.zeros_like({b}, dtype=torch.long), {b})",
    "{a}.sub_({b}).mul_(0.5)",
    "{a}.t_().mul_(2)",
    "{a}.detach().mul_(2)",
    "{a}.detach().add_(0.5)",
    "{a}.view(-1)[0] = 0.5",
    "{a}.copy_({b}.float())",
    "{a}.exp_()",
    "{a}.index_put_((torch.tensor([0, 0]),), {b}[:1].clone(), accumulate=True)",
    "torch.sin({b}, out={a})",
    "{a}.sigmoid_()",
    "{a}[1:].copy_({a}[:-1].clone())",
    "{a}.tril_()",
    "{a}.div_(2)",
    "{a}.bernoulli_(0.5)",
    "{a}.pow_(2)",
    "{a}.square_()",
    "{a}.unsqueeze_(0)",
    "{a}.squeeze_()",
    "{a}.select(0, 0).mul_({b}.select(0, 0))",
    "{a}.masked_scatter_({a} > 0, {b}.clone())",
    "{a}.transpose_(0, -1)",
    "{a}.swapaxes_(0, -1)",
)
CALLS = (
    "{v} = ScaleInPlace.apply({a})",
    "{v} = WritesSaved.apply({a}, {b})",
    "{v} = WritesInput.apply({a}, {b})",
    "{v} = Dirty.apply({a})",
    "{v} = Identity.apply({a})",
    "{v}, {v}m = TwoOutputs.apply({a}, {b}); {v}b = {v} * {v}m",
    "{v} = ScatterRows.apply({a})",
    "{v} = Nested.apply({a})",
)
KINDS = (PURE, VIEWS, VIEWS, WRITES, WRITES, WRITES, CALLS)
# Changes of a tensor's shape; of an input's, a traced program cannot make them.
SHAPE_CHANGES = ("t_()", "unsqueeze_(", "squeeze_(", "transpose_(", "swapaxes_(")
MODES = ("", "", "", "with torch.no_grad(): ", "")

Step = tuple[int, int, int, int, int, int]


def _leaf(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64).add_(0.1).requires_grad_()


def _tensor(*shape: int) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float64).add_(0.1)


def _views_of_one() -> tuple:
    base = _tensor(3, 3)
    return base[:2], base[1:], _leaf(2, 3)


def _same_twice() -> tuple:
    a, b = _tensor(2, 3), _leaf(2, 3)
    return a, a, b


INPUTS: tuple[Callable[[], tuple], ...] = (
    lambda: (_leaf(2, 3), _tensor(2, 3), _tensor(3)),
    lambda: (_leaf(2, 3) * 1, _tensor(2, 3), _leaf(3)),
    lambda: (_tensor(2, 3), _tensor(2, 3).t().contiguous().t(), _leaf(2, 3) * 2),
    _views_of_one,
    _same_twice,
    lambda: (_tensor(3, 3), _leaf(3, 3) * 1, _tensor(2, 3, 3)[1]),
)
PARAMETERS = ("x", "y", "z")


@dataclass(frozen=True)
class GeneratedProgram:
    """Source of a function `f(x, y, z)` and what makes its arguments."""

    source: str
    inputs: int

    def function(self) -> Callable:
        space = dict(NAMESPACE)
        exec(compile(self.source, "<generated program>", "exec"), space)
        return space["f"]

    def arguments(self, seed: int) -> tuple:
        torch.manual_seed(seed)
        return INPUTS[self.inputs]()

    def __str__(self) -> str:
        return f"# inputs {self.inputs}\n{self.source}"


def _is_small(space: dict[str, Any], names: Sequence[str]) -> bool:
    values = [space[n] for n in names]
    return all(not isinstance(v, torch.Tensor) or (0 < v.numel() <= 64 and v.dim() <= 4) for v in values)


def _run(inputs: int, lines: Sequence[str]) -> dict[str, Any]:
    """The variables after some lines of a program, with memory shared as it is there."""
    torch.manual_seed(0)
    space: dict[str, Any] = dict(NAMESPACE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space.update(zip(PARAMETERS, (t.detach() for t in INPUTS[inputs]()), strict=True))
        with torch.no_grad():
            exec("\n".join(lines), space)
    return space


def _depends_on_order(space: dict[str, Any], target: str, sources: Sequence[str]) -> bool:
    """Whether a write reads the memory that it writes through another window, which torch does in no certain order."""
    t = space[target]
    for name in sources:
        s = space[name]
        if s.untyped_storage().data_ptr() == t.untyped_storage().data_ptr():
            same = (s.shape, s.stride(), s.storage_offset()) == (t.shape, t.stride(), t.storage_offset())
            if not same:
                return True
    return False


def build(inputs: int, steps: Sequence[Step], returned: Sequence[int]) -> GeneratedProgram:
    """Turns numbers into a program. A step that makes no sense for the shapes at hand is left out."""
    names, lines, plain = list(PARAMETERS), [], []
    space = _run(inputs, [])
    for n, (kind, which, mode, *picks) in enumerate(steps):
        templates = KINDS[kind % len(KINDS)]
        template = templates[which % len(templates)]
        a, b, c = (names[p % len(names)] for p in picks)
        if a in PARAMETERS and any(m in template for m in SHAPE_CHANGES):
            continue
        if templates is WRITES and _depends_on_order(
            space, a, [v for v, t in ((b, "{b}"), (c, "{c}")) if t in template]
        ):
            continue
        v = f"v{n}"
        line = template.format(v=v, a=a, b=b, c=c)
        made = [m for m in (v, f"{v}b") if m in line.split(" = ")[0] or f"{m} = " in line]
        try:
            trial = _run(inputs, [*plain, line])
        except Exception:  # any error of torch's on these shapes: the step is not part of the program
            continue
        if not _is_small(trial, [*names, *made]) or not all(trial[m].dtype == torch.float64 for m in (*names, *made)):
            continue
        space = trial
        plain.append(line)
        # A view made without autograd says that it requires grad and has no history: no program reads that.
        prefix = "" if templates is VIEWS else MODES[mode % len(MODES)]
        lines.append(f"    {prefix}{line}")
        names.extend(made)
    outs = ", ".join(names[-1 - r % len(names)] for r in returned) or names[-1]
    body = "\n".join(lines)
    return GeneratedProgram(f"def f(x, y, z):\n{body}\n    return {outs},\n", inputs)
