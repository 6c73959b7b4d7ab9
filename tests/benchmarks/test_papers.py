"""The papers' experiments run in a tiny size and draw figures; some values have closed forms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import papers
from benchmarks.papers import sparknet2015
from benchmarks.papers._objective import Objective, made_rows
from benchmarks.papers._stale import RATES, PulledSeldom, simulated
from benchmarks.simulator.training import Problem
from daskml_dist.planning.simulator import Stragglers
from tests.quick import quick


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", quick(papers.names(), "ho2013", "sparknet2015"))
def test_paper_prints_tables_and_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["benchmarks", "papers", name, "--tiny", "--pictures", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()
    printed = capsys.readouterr().out
    assert "\n|---|" in printed
    picture = (tmp_path / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000


def test_unknown_paper_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        papers.main(["nobody1999"])
    assert "nobody1999" in capsys.readouterr().err


def test_every_paper_is_documented() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "papers.md").read_text()
    for name in papers.names():
        assert f"papers {name}" in text
        assert f"_static/papers/{name}.png" in text
        assert (docs / "_static" / "papers" / f"{name}.png").stat().st_size < 60_000


def test_minimum_is_where_the_gradient_is_zero() -> None:
    X, y = made_rows(500, 10)
    objective = Objective(X, y, 0.1)

    class Model:
        def __init__(self, w: Any) -> None:
            self.coef_, self.intercept_ = w[None, :-1], w[-1:]

    rng = np.random.default_rng(0)
    least = objective.minimum
    assert all(objective(Model(rng.normal(scale=0.3, size=11))) > least for _ in range(50))
    assert objective(Model(np.zeros(11))) == pytest.approx(np.log(2))


def test_sparknet_speed_up_by_the_cost_of_averaging() -> None:
    figures = sparknet2015.Figures("", 0.9, 1.0, {(1, 1): 800.0, (4, 1): 200.0, (4, 10): 250.0})
    assert figures.speed_up(4, 1) == 4
    assert figures.speed_up(4, 1, 1.0) == 2
    assert figures.speed_up(4, 10, 1.0) == pytest.approx(3.2 / 1.1)
    assert (figures.workers, figures.taus) == ([4], [1, 10])


def test_copies_that_age_take_more_steps_and_less_waiting() -> None:
    """Ho et al. 2013, in virtual time."""
    problem = Problem.make(400, 10, excess=0.01)
    noise = Stragglers(noise=0.45)
    (lock_step, fast), (stale, slow) = (
        simulated(bound, problem, 8, 0.01, noise, cached=True) for bound in (0, 16)
    )
    assert stale.computing > 1.5 * lock_step.computing
    assert stale.steps > 2 * lock_step.steps
    assert min(RATES) < slow < fast
    assert PulledSeldom(3).pull_every == 4
