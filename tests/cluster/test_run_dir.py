"""The run directory: one owner at a time, nothing left of the one before, and short enough for sockets."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.run_dir import RunDir, RunDirBusy


@pytest.fixture
def claim(tmp_path: Path) -> Iterator[Callable[..., RunDir]]:
    """Claims for `tmp_path/state`, in `tmp_path/tmp`; released at the end."""
    claimed: list[RunDir] = []
    (tmp_path / "tmp").mkdir()

    def claim(state: str = "state") -> RunDir:
        claimed.append(RunDir.claim(tmp_path / state, tmp_path / "tmp"))
        return claimed[-1]

    yield claim
    for run_dir in claimed:
        run_dir.release()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_private_empty_and_linked_from_the_state_directory(claim: Callable, tmp_path: Path) -> None:
    run_dir = claim()
    assert run_dir.path.parent == tmp_path / "tmp" / f"hr-{os.getuid()}"
    assert (mode(run_dir.path), mode(run_dir.path.parent), mode(tmp_path / "state")) == (0o700,) * 3
    assert list(run_dir.path.iterdir()) == []
    assert (tmp_path / "state" / "run").readlink() == run_dir.path


def test_its_sockets_fit_where_haproxy_takes_97_bytes(claim: Callable) -> None:
    """Ray names a socket by a node id of 56 characters; the user's id at its longest."""
    path = RunDir(Path("/tmp/hr-4294967294") / claim().path.name).haproxy / ("n" * 56)
    assert len(os.fsencode(path)) <= 97


def test_a_second_claim_is_busy_and_leaves_the_first_alone(claim: Callable) -> None:
    first = claim()
    (first.path / "socket").touch()
    with pytest.raises(RunDirBusy):
        claim()
    assert (first.path / "socket").exists()


def test_another_state_directory_has_another_one(claim: Callable) -> None:
    assert claim("one").path != claim("two").path


def test_the_same_state_directory_by_another_name_is_the_same(claim: Callable, tmp_path: Path) -> None:
    first = claim()
    (tmp_path / "alias").symlink_to(tmp_path / "state")
    with pytest.raises(RunDirBusy):
        claim("alias")
    first.release()
    assert claim("alias").path == first.path


def test_what_a_crashed_owner_left_is_gone_at_the_next_claim(claim: Callable) -> None:
    crashed = claim()
    crashed.haproxy.mkdir()
    (crashed.haproxy / "admin.sock").touch()
    crashed.add_target("127.0.0.1:1", {})
    crashed.release()
    again = claim()
    assert again.path == crashed.path
    assert list(again.path.iterdir()) == []


def test_its_logs_stay_after_the_owner_has_left(claim: Callable) -> None:
    run_dir = claim()
    (run_dir.path / "launch.log").write_text("why")
    run_dir.release()
    run_dir.release()
    assert (run_dir.path / "launch.log").read_text() == "why"


def test_what_a_stopped_cluster_left_can_be_taken_away(claim: Callable, tmp_path: Path) -> None:
    run_dir, other = claim(), claim("other")
    (run_dir.path / "launch.log").write_text("why")
    run_dir.release()
    RunDir.remove(tmp_path / "state")
    assert {path.name for path in other.path.parent.iterdir()} == {other.path.name, f"{other.path.name}.lock"}
    assert list((tmp_path / "state").iterdir()) == []


def test_where_no_cluster_was_there_is_nothing_to_take_away(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    RunDir.remove(tmp_path)
    assert (tmp_path / "mine").exists()


def test_a_child_that_outlives_the_owner_does_not_hold_it(claim: Callable) -> None:
    run_dir = claim()
    assert run_dir._lock is not None
    assert not os.get_inheritable(run_dir._lock.fileno())


class TestSomethingInTheWay:
    def test_a_base_that_others_can_write_is_refused(self, claim: Callable, tmp_path: Path) -> None:
        base = tmp_path / "tmp" / f"hr-{os.getuid()}"
        base.mkdir()
        base.chmod(0o770)
        with pytest.raises(PermissionError, match="is not a private directory of this user"):
            claim()

    def test_a_base_that_leads_elsewhere_is_refused(self, claim: Callable, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (tmp_path / "tmp" / f"hr-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(PermissionError, match="is not a private directory of this user"):
            claim()

    def test_a_base_of_another_user_is_refused(
        self, claim: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        us = os.getuid()
        (tmp_path / "tmp" / f"hr-{us + 1}").mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: us + 1)
        with pytest.raises(PermissionError, match="is not a private directory of this user"):
            claim()

    def test_a_file_of_the_base_s_name_is_refused(self, claim: Callable, tmp_path: Path) -> None:
        (tmp_path / "tmp" / f"hr-{os.getuid()}").touch()
        with pytest.raises(FileExistsError):
            claim()

    def test_a_folder_of_the_link_s_name_is_kept_and_refused(self, claim: Callable, tmp_path: Path) -> None:
        (tmp_path / "state" / "run").mkdir(parents=True)
        (tmp_path / "state" / "run" / "mine").touch()
        with pytest.raises(OSError, match="run"):
            claim()
        assert (tmp_path / "state" / "run" / "mine").exists()


def targets(run_dir: RunDir) -> list[dict]:
    return json.loads((run_dir.path / "targets.json").read_text())


def test_targets_are_prometheus_file_sd(claim: Callable) -> None:
    run_dir = claim()
    run_dir.add_target("127.0.0.1:9001", {"process": "gateway"})
    RunDir(run_dir.path).add_target("127.0.0.1:9002", {"process": "replica"})
    assert targets(run_dir) == [
        {"targets": ["127.0.0.1:9001"], "labels": {"process": "gateway", "pid": str(os.getpid())}},
        {"targets": ["127.0.0.1:9002"], "labels": {"process": "replica", "pid": str(os.getpid())}},
    ]


def test_no_target_is_lost_when_many_come_at_once(claim: Callable) -> None:
    run_dir = claim()
    together = threading.Barrier(8)

    def add(number: int) -> None:
        together.wait()
        RunDir(run_dir.path).add_target(f"127.0.0.1:{number}", {})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(target["targets"][0] for target in targets(run_dir)) == [
        f"127.0.0.1:{number}" for number in range(8)
    ]


def test_targets_of_the_dead_are_taken_out_and_remembered_by_whoever_comes_next(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    gone = {"targets": ["127.0.0.1:1"], "labels": {"process": "replica", "pid": str(dead.pid)}}
    (tmp_path / "targets.json").write_text(json.dumps([gone]))
    RunDir(tmp_path).add_target("127.0.0.1:2", {"process": "replica"})
    (left,) = json.loads((tmp_path / "targets.json").read_text())
    assert left["targets"] == ["127.0.0.1:2"]
    assert json.loads((tmp_path / "gone.json").read_text()) == [gone]


def test_a_node_s_directory_is_private_and_the_same_for_all_clusters_on_it(tmp_path: Path) -> None:
    node = RunDir.of_node(tmp_path)
    (node.path / "haproxy").touch()
    assert RunDir.of_node(tmp_path).path == node.path
    assert (node.path / "haproxy").exists()
    assert node.path.stat().st_mode & 0o777 == 0o700
    assert len(str(node.path)) - len(str(tmp_path)) == len(f"/hr-{os.getuid()}/123456")


def test_a_node_s_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    RunDir.of_node(tmp_path).path.chmod(0o755)
    with pytest.raises(PermissionError, match="is not a private directory of this user"):
        RunDir.of_node(tmp_path)


def test_who_leaves_as_asked_takes_itself_out_and_is_remembered(claim: Callable) -> None:
    run_dir = claim()
    run_dir.add_target("127.0.0.1:1", {"process": "replica"})
    other = {"targets": ["127.0.0.1:2"], "labels": {"process": "replica", "pid": "1"}}
    (run_dir.path / "targets.json").write_text(json.dumps([*targets(run_dir), other]))
    run_dir.drop_target()
    assert targets(run_dir) == [other]
    (gone,) = json.loads((run_dir.path / "gone.json").read_text())
    assert gone["targets"] == ["127.0.0.1:1"]


def test_a_process_on_a_node_without_a_launcher_makes_the_directory_for_its_target(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "base" / "run")
    run_dir.add_target("127.0.0.1:9001", {"process": "replica"})
    assert [target["targets"] for target in targets(run_dir)] == [["127.0.0.1:9001"]]
    assert run_dir.path.stat().st_mode & 0o777 == 0o700
