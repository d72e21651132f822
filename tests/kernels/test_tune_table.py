"""The table: the very shape, else the nearest one, and it says which; what was measured stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.commands.tune_command import OPS
from kernels.tune.problems import problems
from kernels.tune.table import MEASURED, RANKED, TUNED, Entry, Found, Table, load, save


def entry(
    op: str = "decode", choice: int = 1, basis: str = RANKED, dtype: str = "float16", **sizes: int
) -> Entry:
    return Entry(op, {"dtype": dtype, **sizes}, {"num_keys": choice}, basis, "h100", {"triton": "3"}, 0)


def test_the_very_shape_is_found_exactly() -> None:
    table = Table("sm_90", (entry(head_dim=64), entry(head_dim=128)))
    found = table.find("decode", {"dtype": "float16", "head_dim": 128})
    assert found == Found(table.entries[1], is_exact=True)


@pytest.mark.parametrize(("head_dim", "nearest"), [(96, 128), (72, 64), (1, 64), (1000, 128)])
def test_another_size_gets_the_nearest_by_its_ratio(head_dim: int, nearest: int) -> None:
    table = Table("sm_90", (entry(head_dim=64), entry(head_dim=128)))
    found = table.find("decode", {"dtype": "float16", "head_dim": head_dim})
    assert found is not None
    assert (found.entry.shape["head_dim"], found.is_exact) == (nearest, False)


def test_a_call_without_sequences_has_a_nearest_one_too() -> None:
    table = Table("sm_90", (entry(num_seqs=8), entry(num_seqs=2)))
    found = table.find("decode", {"dtype": "float16", "num_seqs": 0})
    assert found is not None
    assert found.entry.shape["num_seqs"] == 2


def test_all_sizes_count_together() -> None:
    table = Table("sm_90", (entry(head_dim=64, num_seqs=256), entry(head_dim=128, num_seqs=1)))
    found = table.find("decode", {"dtype": "float16", "head_dim": 64, "num_seqs": 2})
    assert found is not None
    assert found.entry.shape["num_seqs"] == 1


def test_another_op_type_or_kind_of_shape_is_never_near() -> None:
    table = Table("sm_90", (entry(head_dim=64),))
    assert table.find("prefill", {"dtype": "float16", "head_dim": 64}) is None
    assert table.find("decode", {"dtype": "float32", "head_dim": 64}) is None
    assert table.find("decode", {"dtype": "float16", "head_dim": 64, "num_seqs": 1}) is None


def test_a_new_entry_takes_the_old_one_s_place_but_a_guess_not_a_measurement_s() -> None:
    table = Table("sm_90", (entry(choice=1, head_dim=64), entry(choice=2, basis=MEASURED, head_dim=128)))
    told = table.with_entries([entry(choice=3, head_dim=64), entry(choice=4, head_dim=128)])
    assert [e.choice["num_keys"] for e in sorted(told.entries, key=lambda e: str(e.shape))] == [2, 3]
    told = told.with_entries([entry(choice=5, basis=MEASURED, head_dim=128)])
    assert {e.choice["num_keys"] for e in told.entries} == {3, 5}


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    assert load("sm_90", tmp_path) == Table("sm_90")
    table = Table("sm_90").with_entries([entry(head_dim=64), entry(head_dim=128, dtype="bfloat16")])
    save(table, tmp_path)
    assert load("sm_90", tmp_path) == table


def test_a_table_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Table("sm_90").with_entries([entry(head_dim=64)])
    save(before, tmp_path)
    whole = Path.write_text

    def cut(path: Path, text: str) -> int:
        whole(path, text[:40])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(KeyboardInterrupt):
        save(before.with_entries([entry(head_dim=128)]), tmp_path)
    assert load("sm_90", tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["sm_90.json"]


def test_the_stored_tables_hold_choices_that_their_shapes_have() -> None:
    """There may be none."""
    for file in sorted(TUNED.glob("*.json")):
        check_stored(load(file.stem), file.stem)


def check_stored(table: Table, arch: str) -> None:
    assert table.arch == arch
    spaces = {(p.op, str(dict(p.shape))): p.space for op in OPS for p in problems(op, table.arch)}
    for one in table.entries:
        genes = spaces[one.op, str(dict(one.shape))].genes
        assert {name: value in genes[name] for name, value in one.choice.items()} == dict.fromkeys(
            genes, True
        )
        assert one.basis in (MEASURED, RANKED)
        assert set(one.versions) == {"torch", "triton"}
        found = table.find(one.op, one.shape)
        assert found is not None
        assert found == Found(replace(one), is_exact=True)
