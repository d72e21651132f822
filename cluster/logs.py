"""Our own log lines in an actor: to stderr, which Ray keeps in a file for each worker."""

from __future__ import annotations

import logging
import sys


def set_up_logging(level: str) -> None:
    """`level` is a name of `--log-level`. Lines hold no prompt, no output and no key."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("headrace")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
