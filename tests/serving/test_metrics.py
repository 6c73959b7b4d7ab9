"""The Prometheus page: its values, its format, and sums over processes."""

from __future__ import annotations

import re

import numpy as np

from daskml_dist.serving.metrics import BUCKETS, Metrics

LINE = re.compile(r'daskml_dist_\w+\{(\w+="([^"\\\n]|\\["\\n])*",?)+\} [0-9.e+-]+')


def test_the_page_shows_all_metrics() -> None:
    metrics = Metrics()
    times = np.random.default_rng(0).exponential(0.01, 500)
    for seconds in times:
        metrics.observe("m", "1", float(seconds), 3)
        metrics.count("m", "1", 200)
    metrics.count('a "b"\\\n', "2", 422)
    metrics.swapped("m", "1")
    page = metrics.render().decode()
    assert page.endswith("\n")
    for line in page.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or LINE.fullmatch(line), line
    assert 'daskml_dist_requests_total{model="m",version="1",code="200"} 500' in page
    assert r'{model="a \"b\"\\\n",version="2",code="422"} 1' in page
    assert 'daskml_dist_rows_total{model="m",version="1"} 1500' in page
    assert 'daskml_dist_model_info{model="m",version="1"} 1' in page
    for end in BUCKETS:  # counted with NumPy
        n = int(np.count_nonzero(times <= end))
        assert f'daskml_dist_seconds_bucket{{model="m",version="1",le="{end}"}} {n}\n' in page
    assert 'le="+Inf"} 500\n' in page
    assert 'daskml_dist_seconds_count{model="m",version="1"} 500\n' in page
    total = re.search(r"seconds_sum\S+ (\S+)", page)
    assert total is not None
    np.testing.assert_allclose(float(total[1]), times.sum())


def test_metrics_are_summed_over_ended_and_new_processes() -> None:
    """Sums stay correct while processes end and are replaced."""
    metrics = Metrics(4)

    def another(slot: int, n: int) -> None:
        """Run in a forked process, which shares the memory and has separate totals."""
        one = Metrics(4)
        one._board = metrics._board
        one.attach(slot)
        for _ in range(n):
            one.count("m", "1", 200)
            one.observe("m", "1", 0.002, 2)
        one.share()

    for slot, n in [(1, 5), (2, 7), (1, 11), (3, 1)]:
        another(slot, n)
    metrics.attach(0)
    metrics.count("m", "1", 200)
    page = metrics.render().decode()
    assert 'requests_total{model="m",version="1",code="200"} 25\n' in page
    assert 'rows_total{model="m",version="1"} 48\n' in page
    assert 'seconds_count{model="m",version="1"} 24\n' in page


def test_old_versions_are_dropped_from_the_metrics() -> None:
    metrics = Metrics()
    for version in range(100):
        metrics.count("m", str(version), 200)
        metrics.observe("m", str(version), 0.1, 1)
        metrics.count("other", "1", 200)
    page = metrics.render().decode()
    found = {int(one) for one in re.findall(r'model="m",version="(\d+)"', page)}
    assert found == set(range(84, 100))
    assert '{model="other",version="1",code="200"} 100' in page
