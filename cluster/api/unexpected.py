"""Errors that nobody foresaw: logged by kind and place, never by message, which may quote a prompt or key."""

from __future__ import annotations

import logging
import traceback

_NUM_FRAMES = 8

logger = logging.getLogger("headrace.api")


def log_unexpected(error: BaseException, request_id: str) -> None:
    innermost = list(reversed(traceback.extract_tb(error.__traceback__)))[:_NUM_FRAMES]
    place = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in innermost)
    logger.error("unexpected %s, request %s, at %s", type(error).__name__, request_id, place)
