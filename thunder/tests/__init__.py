"""The test suite. In the source distribution, not in the wheel."""
