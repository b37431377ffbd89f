"""Quickstart: compile a small module, read the program that runs, and compare it with eager PyTorch.

    python examples/quickstart.py

Prints the forward and the backward trace of one call. The exit status is 0 if the compiled module gives what eager
gives.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import Tensor, nn

import thunder


class MLP(nn.Module):
    """A residual two-layer network: (n, width) to (n, width)."""

    def __init__(self, width: int = 16, hidden: int = 32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(self.norm(x))
        h = torch.relu(h)
        return x + self.down(h)


def loss_and_gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean square of the model's output and its gradient for each parameter, by name."""
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> float:
    """The largest absolute difference between two sets of tensors; infinite where their names differ."""
    if expected.keys() != actual.keys():
        return float("inf")
    return max(float((actual[name] - e).abs().max()) for name, e in expected.items())


def heading(text: str) -> None:
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}")


def main() -> int:
    torch.manual_seed(0)
    eager = MLP()
    compiled = thunder.jit(copy.deepcopy(eager))  # used as the module itself: parameters, state_dict, train() ...
    x = torch.randn(8, 16)

    loss, grads = loss_and_gradients(compiled, x)
    expected_loss, expected_grads = loss_and_gradients(eager, x)

    heading("Forward: what runs when you call the module. Comments name your lines; types stand behind each result.")
    print(thunder.last_traces(compiled)[-1])
    heading("Backward: what runs in loss.backward(). Every operation still points to the line it comes from.")
    print(thunder.last_backward_traces(compiled)[-1])

    heading("How it came about: each stage is a program that can be printed, too")
    for trace in thunder.last_traces(compiled):
        print(f"{len(trace.bound_symbols):4d} lines  {trace.get_provenance()}")

    heading("The same as eager?")
    differences = {
        "loss": abs(float(loss - expected_loss)),
        "gradients": largest_difference(expected_grads, grads),
    }
    for what, difference in differences.items():
        print(f"{what:10s} largest difference {difference:.2e}")
    if not all(difference < 1e-5 for difference in differences.values()):
        print("DIFFERENT: this is a bug in thunder, please report it")
        return 1
    print(f"the same; the module was compiled {thunder.cache_misses(compiled)} time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
