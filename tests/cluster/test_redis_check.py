"""Which Redis we accept, and the one line that is said of every other."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from cluster.redis_check import check_redis, judge_redis
from cluster.redis_server import RedisServer, RedisServerError

GOOD = {
    "redis_version": "6.2.0",
    "role": "master",
    "cluster_enabled": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    home = tmp_path_factory.mktemp("redis")
    server = RedisServer.start(home, home)
    yield server
    server.stop()


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        yield client


def test_our_own_server_passes_without_a_warning(server: RedisServer) -> None:
    assert check_redis(server.url).warnings == ()


def test_a_server_is_told_from_others_by_its_run_id(server: RedisServer, client: Redis) -> None:
    assert check_redis(server.url).run_id == client.info("server")["run_id"] != ""


@pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.0", "10.1.2"])
def test_versions_from_6_2_on_are_fine(version: str) -> None:
    facts = judge_redis(GOOD | {"redis_version": version})
    assert (facts.version, facts.warnings) == (version, ())


@pytest.mark.parametrize("version", ["6.0.16", "5.0.0", "unknown", ""])
def test_older_versions_are_refused_by_name(version: str) -> None:
    with pytest.raises(RedisServerError, match=rf"version {version}; 6\.2 or later is needed"):
        judge_redis(GOOD | {"redis_version": version})


def test_a_cluster_and_a_replica_are_refused() -> None:
    with pytest.raises(RedisServerError, match="cluster mode"):
        judge_redis(GOOD | {"cluster_enabled": 1})
    with pytest.raises(RedisServerError, match="is a replica"):
        judge_redis(GOOD | {"role": "slave"})


def test_what_may_lose_data_is_warned_of() -> None:
    facts = judge_redis(GOOD | {"maxmemory_policy": "allkeys-lru", "aof_enabled": 0})
    assert [warning.split(":")[-1] for warning in facts.warnings] == [
        " set noeviction",
        " set appendonly yes",
    ]


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://127.0.0.1:1"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(RedisServerError, match="must begin with redis://"):
        check_redis(url)


def test_a_server_that_is_not_there_is_one_line_without_the_url(tmp_path: Path) -> None:
    with pytest.raises(RedisServerError) as caught:
        check_redis(f"unix://:hunter2@{tmp_path}/nobody.sock")
    assert str(caught.value) == "Redis does not answer at --redis-url (ConnectionError)"


def test_a_wrong_password_is_said_and_not_shown(server: RedisServer, client: Redis) -> None:
    client.acl_setuser("guest", enabled=True, passwords=["+right"], commands=["+@all"], keys=["*"])
    url = server.url.replace("unix://", "unix://guest:hunter2@")
    with pytest.raises(RedisServerError) as caught:
        check_redis(url)
    assert str(caught.value) == "Redis refuses the user or password of --redis-url"
    assert check_redis(url.replace("hunter2", "right")).warnings == ()


def test_a_user_without_scripting_is_refused(server: RedisServer, client: Redis) -> None:
    client.acl_setuser("reader", enabled=True, nopass=True, commands=["+@all", "-@scripting"], keys=["*"])
    with pytest.raises(RedisServerError, match="does not let this user run INFO and EVAL"):
        check_redis(server.url.replace("unix://", "unix://reader:any@"))
