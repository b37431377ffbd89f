"""Logging by area: `get_logger("recompiles")`, switched on by `THUNDER_LOGS="recompiles,passes"`."""

from __future__ import annotations

import logging
import warnings
from typing import Final

from thunder.core.baseutils import did_you_mean
from thunder.core.options import LOG_AREAS, env

ROOT: Final = "thunder"


def get_logger(area: str) -> logging.Logger:
    """The logger named "thunder.<area>"; `area` is one of `options.LOG_AREAS`."""
    return logging.getLogger(f"{ROOT}.{area}")


def configure_from_env() -> None:
    """Switches on, at level DEBUG, the areas that the environment variable THUNDER_LOGS names; "all" means every one.

    Records go to the handlers of the root logger if it has any, else to stderr. Areas not named are left as they are.
    An unknown area is a warning. May be repeated.
    """
    areas = env("THUNDER_LOGS")
    known = [area for area in areas if area in LOG_AREAS]
    for area in areas:
        if area not in LOG_AREAS:
            allowed = ", ".join(LOG_AREAS)
            hint = did_you_mean(area, LOG_AREAS)
            warnings.warn(f'THUNDER_LOGS: unknown area "{area}"{hint or "."} Allowed: {allowed}', stacklevel=2)
    for area in known:
        logger = logging.getLogger(ROOT) if area == "all" else get_logger(area)
        logger.setLevel(logging.DEBUG)
    root = logging.getLogger(ROOT)
    if known and not root.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        root.addHandler(handler)
