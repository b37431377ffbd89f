"""A line on the terminal that says what takes so long."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

FIRST_SHOWN_AFTER_S = 2.0
_REFRESH_S = 0.5


class StatusLine:
    """Shows `text` and the seconds so far on stderr while the block runs, from two seconds on, if that is a terminal.

    The line is gone when the block is left. Nothing happens where stderr is no terminal.
    """

    def __init__(self, text: str, *, after_s: float = FIRST_SHOWN_AFTER_S):
        self.text = text
        self.after_s = after_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._stream = sys.stderr

    def __enter__(self) -> StatusLine:
        if self._stream is not None and self._stream.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True, name="thunder-status")
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()

    def _show(self) -> None:
        start = time.perf_counter()
        if self._stop.wait(self.after_s):
            return
        while True:
            self._stream.write(f"\r\x1b[2Kthunder: {self.text}, {time.perf_counter() - start:.0f} s")
            self._stream.flush()
            if self._stop.wait(_REFRESH_S):
                break
        self._stream.write("\r\x1b[2K")
        self._stream.flush()
