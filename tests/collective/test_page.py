"""The documentation page on custom functions: its code runs and gives NumPy's results."""

from __future__ import annotations

from typing import Any

import numpy as np
from distributed import Client

from tests.docs.blocks import ROOT, blocks


def test_the_code_of_the_page_runs(client: Client) -> None:
    names: dict[str, Any] = {}
    results = []
    for block in blocks(ROOT / "docs" / "run_together.md", "python"):
        # The shared cluster replaces that of the page.
        lines = [line for line in block.code.splitlines() if not line.startswith("client = ")]
        names["client"] = client
        *body, last = lines
        exec("\n".join(body), names)
        if last.startswith((" ", "}", "centres")):
            exec("\n".join(lines), names)
        else:
            results.append(eval(last, names))
    X = names["X"].compute()
    np.testing.assert_allclose(results[0], X.mean(axis=0))
    centres, shift = X[:3], np.inf
    for _ in range(20):
        nearest = ((X[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        moved = np.array([X[nearest == k].mean(axis=0) for k in range(3)])
        centres, shift = moved, np.abs(moved - centres).max()
        if shift < 1e-6:
            break
    np.testing.assert_allclose(names["centres"], centres, rtol=1e-9)
    assert results[1] < 0.5  # relative to a standard deviation of about 1.4
    names.clear()
