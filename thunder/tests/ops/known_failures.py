"""What does not pass, each with its reason. A listed entry of which every sample passes is an error."""

from __future__ import annotations

from dataclasses import dataclass

ANY = "*"

_OUT_SIZE = "the size of the result depends on values, and `out` has one already"
_SPARSE = "torch's fake tensors do not run this sparse operation"
_RESIZE = "changes the shape or storage of an input, which a traced program refuses"
_FAKE_ERROR = "torch's fake kernel raises another class of error than its real one"
_OUT_IGNORED = "torch's own: eager returns `out` without having written to it"
_DYNAMO = "Dynamo refuses it: a sparse tensor, or an enumeration as an argument"
_OVERLAP = "an out= tensor whose elements overlap is not refused: the functional program does not write to it"
_ITEM = "torch has no fake result for item() of a complex tensor"
_VIEW = "a view that begins where the values of a tensor say, which a traced program refuses"


@dataclass(frozen=True)
class KnownFailure:
    """Samples that do not pass.

    column: a column, or ANY for all of them.
    every_sample: False where only some of the samples of the entry are concerned.
    """

    name: str
    column: str
    reason: str
    every_sample: bool = False


KNOWN_FAILURES: tuple[KnownFailure, ...] = (
    *(
        KnownFailure(name, ANY, _VIEW) for name in ("narrow", "tensor_split")
    ),
    KnownFailure("masked_select", "out", _OUT_SIZE, every_sample=True),
    *(KnownFailure(name, ANY, _SPARSE) for name in ("sparse.sampled_addmm", "sparse.mm.reduce")),
    *(KnownFailure(name, ANY, _RESIZE) for name in ("resize_", "resize_as_")),
    *(KnownFailure(name, "out", _OUT_SIZE) for name in ("linalg.lstsq", "nonzero")),
    *(
        KnownFailure(name, "in-place", _RESIZE, every_sample=True)
        for name in (
            "as_strided", "as_strided.partial_views", "squeeze", "squeeze.multiple", "t", "transpose", "unsqueeze",
        )
    ),
    *(
        KnownFailure(name, "errors", _FAKE_ERROR)
        for name in ("amax", "amin", "aminmax", "cat", "complex", "narrow_copy", "nn.functional.embedding")
    ),
    *(KnownFailure(name, "out", _OUT_IGNORED) for name in ("fft.ihfft2", "fft.ihfftn")),
    KnownFailure("kthvalue", "errors", _OVERLAP),
    *(KnownFailure(name, "jit", _DYNAMO) for name in ("to_sparse", "torch._scaled_mm_v2")),
    KnownFailure("item", "complex64", _ITEM, every_sample=True),
)  # fmt: skip

_BY_KEY = {(f.name, f.column): f for f in KNOWN_FAILURES}


def reason_for(name: str, column: str) -> str | None:
    """Why samples of this entry and column may fail; None where they may not."""
    found = _BY_KEY.get((name, column)) or _BY_KEY.get((name, ANY))
    return None if found is None else found.reason
