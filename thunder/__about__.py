"""Facts about the distribution. Read by the build as text, so literals only and no imports."""

__version__ = "0.3.0.dev0"
__author__ = "The lightning-thunder contributors"
__author_email__ = ""
__copyright__ = "Copyright (c) the lightning-thunder contributors."
__homepage__ = ""
__docs__ = "A source-to-source compiler for PyTorch: your program, faster, and readable as Python at every step."

__all__ = [
    "__author__",
    "__author_email__",
    "__copyright__",
    "__docs__",
    "__homepage__",
    "__version__",
]
