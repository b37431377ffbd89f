"""Executors that come with thunder."""
