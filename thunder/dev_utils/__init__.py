"""Tools for those who write passes, transforms and executors."""
