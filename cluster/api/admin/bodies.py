"""What the admin API takes. Strict and bounded; `…Change` holds what is to be replaced, and nothing else."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from cluster.api.admin.terms_body import STRICT, LimitsBody, TermsBody
from cluster.api.field_checks import problem
from tenants.api_key import Scope
from tenants.terms import MAX_BUDGET

MAX_KEY_LIFE_S = 10 * 366 * 86_400
MAX_OVERLAP_S = 30 * 86_400
DAY_S = 86_400
MAX_ADDRESSES = 64

ID_PATTERN = "^[a-z0-9][a-z0-9_-]{0,62}$"
NAME_PATTERN = (
    r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$"  # also what turns text around
)
KEY_ID_PATTERN = "^key_[0-9a-f]{16}$"
NAME_CHARS = 128
_NETWORK = re.compile(r"[0-9a-fA-F.:]{2,45}(?:/[0-9]{1,3})?")


def _usable_id(name: str) -> str:
    if not re.fullmatch(ID_PATTERN.strip("^$"), name):
        raise problem("must be 1 to 63 characters from a-z, 0-9, _ and -, the first a letter or digit")
    return name


def _usable_key_id(name: str) -> str:
    if not re.fullmatch(KEY_ID_PATTERN.strip("^$"), name):
        raise problem("must be a key's id, as in key_0123456789abcdef")
    return name


def _at_least_one_once(scopes: list[Scope]) -> list[Scope]:
    if not scopes:
        raise problem("must name at least one scope")
    if len(set(scopes)) != len(scopes):
        raise problem("must name each scope once")
    return scopes


def _network(text: str) -> str:
    """As the network that holds it: `10.1.2.3/8` is `10.0.0.0/8`."""
    try:
        if not _NETWORK.fullmatch(text):
            raise ValueError
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise problem("must be an address or network, as in 10.0.0.0/8 or 2001:db8::/32") from None


def _harmless(text: str) -> str:
    """Names are shown in terminals: nothing in them may steer one."""
    if not 1 <= len(text) <= NAME_CHARS:
        raise problem(f"must have 1 to {NAME_CHARS} characters")
    if not re.fullmatch(NAME_PATTERN.strip("^$"), text):
        raise problem("must not hold control characters or line breaks")
    return text


Id = Annotated[str, AfterValidator(_usable_id), Field(json_schema_extra={"pattern": ID_PATTERN})]
KeyId = Annotated[str, AfterValidator(_usable_key_id), Field(json_schema_extra={"pattern": KEY_ID_PATTERN})]
Name = Annotated[
    str,
    AfterValidator(_harmless),
    Field(json_schema_extra={"pattern": NAME_PATTERN, "minLength": 1, "maxLength": NAME_CHARS}),
]
Scopes = Annotated[
    list[Scope],
    AfterValidator(_at_least_one_once),
    Field(
        json_schema_extra={"minItems": 1, "uniqueItems": True},
        description="`metrics` and `admin:read` see all tenants, and `admin` changes them: for operators",
    ),
]
Address = Annotated[str, AfterValidator(_network), Field(json_schema_extra={"format": "cidr"})]
Addresses = Annotated[
    list[Address], Field(max_length=MAX_ADDRESSES, description="where it may be used from; none: anywhere")
]
Life = Annotated[int, Field(ge=1, le=MAX_KEY_LIFE_S)]
Window = Literal["day", "month"]


class _Body(BaseModel):
    model_config = ConfigDict(**STRICT, frozen=True)


class NewTier(_Body):
    name: Id
    terms: TermsBody = Field(default_factory=lambda: TermsBody(), description="what is left out: default")


@with_config(STRICT)
class TierChange(TypedDict, total=False):
    terms: Annotated[TermsBody, Field(description="those that change")]


class NewTenant(_Body):
    tenant_id: Id
    name: Name | None = Field(None, description="default: the id")
    tier: Id
    overrides: TermsBody = Field(
        default_factory=lambda: TermsBody(), description="terms that differ from the tier's"
    )
    disabled: bool = False


@with_config(STRICT)
class TenantChange(TypedDict, total=False):
    name: Name
    tier: Id
    overrides: Annotated[TermsBody, Field(description="all of them: those left out are the tier's again")]
    disabled: Annotated[bool, Field(description="true: frozen")]


class NewKey(_Body):
    tenant_id: Id
    name: Name | None = Field(None, description="for people to tell keys apart")
    scopes: Scopes = ["inference"]
    expires_in_s: Life | None = Field(None, description="default: never")
    limits: LimitsBody | None = Field(None, description="of this key alone, beside its tenant's")
    addresses: Addresses = []


@with_config(STRICT)
class KeyChange(TypedDict, total=False):
    name: Name
    scopes: Scopes
    expires_in_s: Annotated[Life | None, Field(description="from now on; null: never")]
    limits: Annotated[LimitsBody | None, Field(description="all of them; null: none of its own")]
    addresses: Addresses


class Rotation(_Body):
    overlap_s: int = Field(
        DAY_S, ge=0, le=MAX_OVERLAP_S, description="for how long the old key works beside the new one"
    )


class TopUp(_Body):
    amount: int = Field(ge=1, le=MAX_BUDGET, description="micro-units")
    window: Window
    key_id: KeyId | None = Field(None, description="of the key with that budget; null: the tenant's")


class Reset(_Body):
    window: Window
    key_id: KeyId | None = Field(None, description="of the key with that budget; null: the tenant's")
