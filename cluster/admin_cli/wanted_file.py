"""`tenants.yaml`: what a person writes, read into what is wanted. Every complaint says where.

tiers:
  gold: {weight: 8, requests_per_min: 6000}    # what is not said has its default: no limit
tenants:
  acme:
    tier: gold
    name: Acme Inc.                            # default: the id
    overrides: {budget_day: 250000000}         # fields of terms, null = no limit
    disabled: false                            # left out: stays as it is
    keys:                                      # left out: stay as they are
      ci: {scopes: [inference], expires_in: 90d, limits: {max_concurrency: 4}, addresses: [10.0.0.0/8]}
                                                 # expires_in counts when a key is made, and never again
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from cluster.admin_cli.directory import WantedDirectory, WantedKey, WantedTenant, as_json
from cluster.admin_cli.durations import seconds_of
from cluster.admin_cli.misfits import misfit
from cluster.yaml_file import YamlFile, read_yaml
from tenants.api_key import Scope
from tenants.tenant import TenantId
from tenants.terms import Limits, Terms
from tenants.tier import TierName

Value = TypeVar("Value")
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


def read_wanted(path: Path) -> WantedDirectory:
    """Raises `cluster.yaml_file.YamlFileError`."""
    file = read_yaml(path)
    return _Reader(file).wanted(file.value)


class _Reader:
    """Reads one file. `at` is how one gets from its top to a value."""

    def __init__(self, file: YamlFile) -> None:
        self._file = file

    def wanted(self, value: Any) -> WantedDirectory:
        said = self._mapping({} if value is None else value, ("tiers", "tenants"))
        return WantedDirectory(
            tiers=self._named(said.get("tiers"), TierName, self._terms, "tiers"),
            tenants=self._named(said.get("tenants"), TenantId, self._tenant, "tenants"),
        )

    def _terms(self, value: Any, *at: str) -> Terms:
        return Terms(**self._fields(value, Terms, *at))

    def _tenant(self, value: Any, *at: str) -> WantedTenant:
        said = self._mapping(value, ("tier", "name", "overrides", "disabled", "keys"), *at)
        if "tier" not in said:
            raise self._file.fault("a tenant needs a tier", *at)
        overrides = self._fields(said.get("overrides"), Terms, *at, "overrides")
        return WantedTenant(
            tier=self._typed(said["tier"], TierName, *at, "tier"),
            name=self._typed(said.get("name", at[-1]), _Name, *at, "name"),
            overrides=as_json(overrides),
            disabled=self._typed(said.get("disabled"), bool | None, *at, "disabled"),
            keys=self._named(said.get("keys"), _Name, self._key, *at, "keys"),
        )

    def _key(self, value: Any, *at: str) -> WantedKey:
        said = self._mapping(value, ("scopes", "limits", "addresses", "expires_in"), *at)
        limits = said.get("limits")
        return WantedKey(
            scopes=self._scopes(said.get("scopes", ["inference"]), *at, "scopes"),
            limits=None if limits is None else Limits(**self._fields(limits, Limits, *at, "limits")),
            addresses=self._addresses(said.get("addresses", []), *at, "addresses"),
            expires_in_s=self._seconds(said.get("expires_in"), *at, "expires_in"),
        )

    def _scopes(self, value: Any, *at: str) -> Any:
        scopes = self._typed(value, tuple[Scope, ...], *at)
        if not scopes or len(set(scopes)) < len(scopes):
            raise self._file.fault("name at least one scope, and each once", *at)
        return scopes

    def _addresses(self, value: Any, *at: str) -> tuple[str, ...]:
        addresses: tuple[str, ...] = self._typed(value, tuple[str, ...], *at)
        for index, address in enumerate(addresses):
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError as error:
                raise self._file.fault(str(error), *at, index) from None
        return addresses

    def _seconds(self, value: Any, *at: str) -> int | None:
        text = self._typed(value, str | None, *at)
        try:
            return None if text is None else seconds_of(text)
        except ValueError as error:
            raise self._file.fault(str(error), *at) from None

    def _fields(self, value: Any, struct: type[msgspec.Struct], *at: str) -> dict[str, Any]:
        """Those of `struct` that are given, each of its type."""
        types = get_type_hints(struct, include_extras=True)
        said = self._mapping({} if value is None else value, types, *at)
        return {field: self._typed(given, types[field], *at, field) for field, given in said.items()}

    def _named(
        self, value: Any, name_type: Any, read: Callable[..., Value], *at: str
    ) -> dict[str, Value] | None:
        """A section, by name. None: it is not there, or nothing is below it; `{}` says that there is none."""
        if value is None:
            return None
        said = self._mapping(value, None, *at)
        for name in said:
            self._typed(name, name_type, *at, name)
        return {name: read({} if held is None else held, *at, name) for name, held in said.items()}

    def _mapping(self, value: Any, known: Iterable[str] | None, *at: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._file.fault("expected fields, `name: value`", *at)
        for field in value:
            if known is not None and field not in known:
                raise self._file.fault(f"there is no such field; there are {', '.join(known)}", *at, field)
        return value

    def _typed(self, value: Any, kind: Any, *at: str) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self._file.fault(misfit(error, kind), *at) from None
