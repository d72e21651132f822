"""What is mended in Ray's HAProxy configuration, and that Ray 2.60 still writes what we mend."""

from importlib.resources import files

from cluster.haproxy import mend

CONFIG = """defaults
    mode http
    option splice-request
    option splice-response
frontend prometheus
    bind :9101
frontend http_frontend
    bind 127.0.0.1:8000
listen stats
  bind *:8404
"""


def test_a_front_that_is_open_to_all_stays_so() -> None:
    opened = mend(CONFIG.replace("127.0.0.1:8000", "*:8000"))
    assert [line.strip() for line in opened.splitlines() if "bind" in line] == [
        "bind 127.0.0.1:9101",
        "bind *:8000",
        "bind 127.0.0.1:8404",
    ]


def test_open_binds_move_to_loopback_and_the_front_stays() -> None:
    assert [line.strip() for line in mend(CONFIG).splitlines() if "bind" in line] == [
        "bind 127.0.0.1:9101",
        "bind 127.0.0.1:8000",
        "bind 127.0.0.1:8404",
    ]


def test_requests_are_not_spliced() -> None:
    assert "splice-request" not in mend(CONFIG)
    assert "splice-response" in mend(CONFIG)


def test_mending_twice_changes_nothing() -> None:
    assert mend(mend(CONFIG)) == mend(CONFIG)


def test_ray_s_template_holds_what_we_mend() -> None:
    template = files("ray.serve._private").joinpath("haproxy_templates.py").read_text()
    assert "    option splice-request\n" in template
    assert "frontend prometheus\n    bind :{{ config.metrics_port }}\n" in template
    assert "listen stats\n  bind *:{{ config.stats_port }}\n" in template
