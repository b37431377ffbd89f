"""Transforms that users choose."""
