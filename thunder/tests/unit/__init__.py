"""Tests without device or model: trace text in, expected text out."""
