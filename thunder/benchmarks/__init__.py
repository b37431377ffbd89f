"""Benchmarks: `python -m thunder.benchmarks` compares eager, torch.compile and thunder side by side."""
