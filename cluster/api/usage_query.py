"""Which usage is asked for: a range of days, and by what its rows are told apart."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.api.errors import bad_request
from cluster.api.field_checks import problem
from tenants.ledger.usage import DIMENSIONS, Dimension

MAX_DAYS = 400

_BY_PATTERN = "^(day|model|key)(,(day|model|key)){0,2}$"
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _real_day(text: str) -> str:
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise problem("must be a day, as in 2026-11-30") from None
    return text


def _real_dimensions(text: str) -> str:
    if not re.fullmatch(_BY_PATTERN.strip("^$"), text):
        raise problem("must be one or more of day, model and key, as in day,model")
    return text


Day = Annotated[str, AfterValidator(_real_day), Field(json_schema_extra={"format": "date"})]


class Days(NamedTuple):
    """Both included; in UTC, as in `2026-11-30`."""

    first: str
    last: str


class UsageQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    first_day: Day | None = Field(
        None, alias="from", description="a day in UTC; default: the first of the month of `to`"
    )
    last_day: Day | None = Field(
        None, alias="to", description=f"a day in UTC, at most {MAX_DAYS - 1} after `from`; default: today"
    )
    by: Annotated[str, AfterValidator(_real_dimensions)] = Field(
        "day",
        json_schema_extra={"pattern": _BY_PATTERN},
        description="what rows are told apart by: of day, model and key, those that are named",
        examples=["day,model,key"],
    )

    @property
    def dimensions(self) -> frozenset[Dimension]:
        named = self.by.split(",")
        return frozenset(dimension for dimension in DIMENSIONS if dimension in named)

    def days(self, now: float) -> Days:
        """`now` is Unix time. Raises `ApiError` 400 naming `from` for a range that is none or too long."""
        last = self.last_day or datetime.fromtimestamp(now, UTC).date().isoformat()
        first = self.first_day or f"{last[:8]}01"
        num_days = (date.fromisoformat(last) - date.fromisoformat(first)).days + 1
        if num_days < 1:
            raise bad_request("'from': must not be after 'to'.", param="from")
        if num_days > MAX_DAYS:
            raise bad_request(f"'from': at most {MAX_DAYS} days can be asked for at once.", param="from")
        return Days(first, last)
