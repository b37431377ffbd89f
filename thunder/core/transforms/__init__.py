"""Passes, one file each; the list of them is `thunder/pipeline.py`."""
