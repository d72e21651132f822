"""`tenants.yaml`: what it may say, and complaints that name file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.admin_cli.directory import WantedDirectory, WantedKey, WantedTenant
from cluster.admin_cli.wanted_file import read_wanted
from cluster.yaml_file import YamlFileError
from tenants.terms import Limits, Terms

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "tenants.yaml"

WHOLE = """
tiers:
  gold: {weight: 8, requests_per_min: 6_000, models: [a, b], budget_day: null}
  plain:
tenants:
  acme:
    tier: gold
    name: Acme Inc.
    disabled: true
    overrides: {budget_day: 250000000, models: [a], max_queue_len: null}
    keys:
      ci: {expires_in: 90d, limits: {max_concurrency: 4}, addresses: [10.0.0.0/8, "::1"]}
      app:
      ops: {scopes: [admin, metrics]}
  beta:
    tier: free
    overrides:
    keys:
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "t.yaml"
    path.write_text(text)
    return path


def test_everything_that_can_be_said_is_read(tmp_path: Path) -> None:
    assert read_wanted(written(tmp_path, WHOLE)) == WantedDirectory(
        tiers={"gold": Terms(weight=8, requests_per_min=6000, models=("a", "b")), "plain": Terms()},
        tenants={
            "acme": WantedTenant(
                name="Acme Inc.",
                tier="gold",
                disabled=True,
                overrides={"budget_day": 250_000_000, "models": ["a"], "max_queue_len": None},
                keys={
                    "ci": WantedKey(
                        expires_in_s=90 * 86_400,
                        limits=Limits(max_concurrency=4),
                        addresses=("10.0.0.0/8", "::1"),
                    ),
                    "app": WantedKey(),
                    "ops": WantedKey(scopes=("admin", "metrics")),
                },
            ),
            "beta": WantedTenant(name="beta", tier="free"),
        },
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "tiers:\ntenants:\n"])
def test_a_section_without_anything_below_it_speaks_of_nothing(text: str, tmp_path: Path) -> None:
    assert read_wanted(written(tmp_path, text)) == WantedDirectory()


def test_an_empty_section_says_that_there_is_none(tmp_path: Path) -> None:
    said = read_wanted(written(tmp_path, "tiers: {}\ntenants: {acme: {tier: free, keys: {}}}"))
    assert said == WantedDirectory(
        tiers={}, tenants={"acme": WantedTenant(name="acme", tier="free", keys={})}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tiers:\n  a: {}\n  b: {}\n  a: {}\n", ":4: a is there twice"),
        ("tenants:\n  acme:\n    tier: a\n    tier: b\n", ":4: tier is there twice"),
        ("tenant:\n  acme: {tier: a}\n", ":1: tenant: there is no such field; there are tiers, tenants"),
        (
            "tiers:\n  gold:\n    weight: 1\n    requests_per_mni: 5\n",
            ":4: tiers.gold.requests_per_mni: there is no such field; there are ",
        ),
        ("tiers:\n  gold:\n    weight: 0\n", ":3: tiers.gold.weight: Expected `int` >= 1"),
        ("tiers: {gold: {weight: yes}}", ":1: tiers.gold.weight: Expected `int`, got `bool`"),
        ("tiers: {gold: {weight: 1.5}}", ":1: tiers.gold.weight: Expected `int`, got `float`"),
        (
            "tiers: {gold: {offline: maybe}}",
            ":1: tiers.gold.offline: there is no maybe; there are refuse, serve",
        ),
        ("tiers: {gold: [1]}", ":1: tiers.gold: expected fields, `name: value`"),
        ("tiers: {Gold: {}}", ":1: tiers.Gold: an id has 1 to 63 characters of a-z, 0-9, _ and -"),
        ("tenants:\n  acme:\n", ":2: tenants.acme: a tenant needs a tier"),
        (
            "tenants:\n  acme: {tier: a, plan: b}\n",
            ":2: tenants.acme.plan: there is no such field; there are tier,",
        ),
        ("tenants: {acme: {tier: a, name: no}}", ":1: tenants.acme.name: Expected `str`, got `bool`"),
        ("tenants: {acme: {tier: a, name: 2026-11-30}}", ":1: tenants.acme.name: Expected `str`, got `date`"),
        ("tenants: {acme: {tier: a, disabled: 1}}", ":1: tenants.acme.disabled: Expected `bool | null`"),
        (
            "tenants: {acme: {tier: a, overrides: {tier: b}}}",
            "tenants.acme.overrides.tier: there is no such field",
        ),
        (
            "tenants: {acme: {tier: a, overrides: {weight: null}}}",
            "overrides.weight: Expected `int`, got `null`",
        ),
        ("tenants: {acme: {tier: a, keys: [ci]}}", "tenants.acme.keys: expected fields"),
        ("tenants: {acme: {tier: a, keys: {ci: {scope: x}}}}", "keys.ci.scope: there is no such field"),
        (
            "tenants: {acme: {tier: a, keys: {ci: {scopes: [root]}}}}",
            "keys.ci.scopes: there is no root; there are inference, metrics, admin, admin:read",
        ),
        ("tenants: {acme: {tier: a, keys: {ci: {scopes: []}}}}", "keys.ci.scopes: name at least one scope"),
        (
            "tenants: {acme: {tier: a, keys: {ci: {scopes: [metrics, metrics]}}}}",
            "keys.ci.scopes: name at least one scope, and each once",
        ),
        (
            "tenants:\n  acme:\n    tier: a\n    keys:\n      ci: {addresses: ['::1',\n        10.0.0.0/40]}",
            ":6: tenants.acme.keys.ci.addresses.1: '10.0.0.0/40' does not appear to be",
        ),
        (
            "tenants: {acme: {tier: a, keys: {ci: {limits: {weight: 1}}}}}",
            "ci.limits.weight: there is no such field",
        ),
        (
            "tenants: {acme: {tier: a, keys: {ci: {expires_in: 90}}}}",
            "keys.ci.expires_in: Expected `str | null`, got `int`",
        ),
        (
            "tenants: {acme: {tier: a, keys: {ci: {expires_in: 9y}}}}",
            "keys.ci.expires_in: '9y' is no length of time",
        ),
        ("tenants: {acme: {tier: a, keys: {'': {}}}}", "Expected `str` of length >= 1"),
        ("tiers: {a: {}}\n---\ntiers: {b: {}}\n", ":2: but found another document"),
        ("tiers: {1: {}}", ":1: a key must be text: quote it"),
        ("tiers: {a: {weight: 1}", "expected ',' or '}'"),
        ("[]", ":1: expected fields"),
    ],
)
def test_a_complaint_names_file_line_and_field(text: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(YamlFileError) as raised:
        read_wanted(path)
    line = str(raised.value)
    assert line.startswith(str(path))
    assert said in line
    assert "\n" not in line


def test_the_example_in_the_repository_is_a_good_one() -> None:
    wanted = read_wanted(EXAMPLE)
    assert wanted.tiers
    assert wanted.tenants
    assert any(tenant.keys for tenant in wanted.tenants.values())
