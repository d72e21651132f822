"""Terms as callers give them are terms as the record holds them: same fields, same bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cluster.api.admin.terms_body import LimitsBody, TermsBody
from tenants.terms import Limits, Terms

SAME_MEANING = ("type", "minimum", "maximum", "enum")


def shape_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Types with their bounds, null among them."""
    kinds = schema.get("anyOf", [schema])
    shapes = [{name: kind[name] for name in SAME_MEANING if name in kind} for kind in kinds]
    for shape in shapes:
        if "enum" in shape:
            shape.pop("type", None)
            shape["enum"].sort()
    return sorted(shapes, key=str)


@pytest.mark.parametrize(("body", "held"), [(TermsBody, Terms), (LimitsBody, Limits)])
def test_fields_and_bounds_are_those_that_are_held(body: Any, held: Any) -> None:
    given = TypeAdapter(body).json_schema()["properties"]
    (_,), components = msgspec.json.schema_components([held])
    kept = components[held.__name__]["properties"]
    assert list(given) == list(kept)
    for name in kept:
        assert shape_of(given[name]) == shape_of(kept[name]), name


@given(
    st.sampled_from([name for name in Terms.__struct_fields__ if name not in ("models",)]),
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from(["", "interactive", "batch", "refuse", "serve"]),
        st.integers(-2, 2),
        st.integers(10**6 - 2, 10**6 + 2),
        st.sampled_from([1000, 1001, 3600, 3601, 2**24, 2**24 + 1, 10**8, 10**8 + 1, 10**15, 10**15 + 1]),
        st.floats(allow_nan=False),
    ),
)
def test_what_the_body_takes_the_record_holds_and_nothing_else(field: str, value: Any) -> None:
    assert is_taken(field, value) == is_held(field, value)


def is_taken(field: str, value: Any) -> bool:
    try:
        TypeAdapter(TermsBody).validate_python({field: value})
    except ValidationError:
        return False
    return True


def is_held(field: str, value: Any) -> bool:
    """As JSON tells it: a float is no integer, even if it is whole."""
    if isinstance(value, float):
        return False
    try:
        msgspec.convert({field: value}, Terms)
    except msgspec.ValidationError:
        return False
    return True
