"""Reference boosting in plain NumPy: samples of rows, of features, dropped trees.

Splits are searched over all rows of a node, one bin after another, with sums of floats. Random
draws are those of the package, which depend only on the seed and on the numbers of rows and
iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskml_dist.models.bins import draw_by_hash
from daskml_dist.solvers.row_sampling import draw_rows, make_key
from daskml_dist.solvers.tree_dropout import TreeDropout

#: Numbers of the random draws, as in the package's modules.
NODE, TREE, LEVEL, ROWS, TIES = 3, 9, 10, 11, 12


@dataclass
class Reference:
    """Boosting with the squared error, or with the log loss of two classes."""

    max_iter: int = 6
    learning_rate: float = 0.1
    max_leaf_nodes: int = 7
    min_samples_leaf: int = 5
    l2: float = 0.0
    subsample: float = 1.0
    goss: tuple[float, float] | None = None
    colsample_bytree: float = 1.0
    colsample_bylevel: float = 1.0
    max_features: float = 1.0
    depthwise: bool = False
    dropout: TreeDropout | None = None
    log_loss: bool = False
    seed: int = 0

    def fit(self, bins: Any, y: Any) -> Reference:
        """Boost on the bins of rows; afterwards `raw` holds the sums of the trees."""
        mean = y.mean()
        start = math.log(mean / (1 - mean)) if self.log_loss else mean
        self.bins, n = bins, len(y)
        self.salt = (draw_by_hash(np.arange(n)) >> np.uint64(32)).astype(np.uint32)
        self.counts: list[list[int]] = []
        answers: list[Any] = []
        for iteration in range(self.max_iter):
            dropped = [] if self.dropout is None else self.dropout.draw(iteration, self.seed)
            raw = start + sum((a for i, a in enumerate(answers) if i not in dropped), np.zeros(n))
            share = 1 / (1 + np.exp(-raw))
            g, h = (share - y, share * (1 - share)) if self.log_loss else (raw - y, np.ones(n))
            used, times = self._choose(g, iteration)
            answer = self._grow(g * times, h * times, used, iteration)
            answers.append(answer * self.learning_rate / (len(dropped) + 1))
            for i in dropped:
                answers[i] = answers[i] * len(dropped) / (len(dropped) + 1)
        self.raw = start + sum(answers)
        return self

    def _choose(self, g: Any, iteration: int) -> tuple[Any, Any]:
        """Return a mask of the rows to grow on, and the factors of their gradients."""
        n = len(g)
        drawn = draw_rows(self.salt, make_key(self.seed, ROWS, iteration)) / 2.0**32
        if self.goss is None:
            return drawn < self.subsample, np.ones(n)
        top, other = self.goss
        n_top = int(top * n)
        ties = draw_rows(self.salt, make_key(self.seed, TIES, iteration))
        is_top = np.zeros(n, bool)
        is_top[np.lexsort((ties, np.abs(g).astype(np.float32)))[n - n_top :]] = True
        share = other * n / (n - n_top)
        is_other = ~is_top & (drawn < share)
        return is_top | is_other, np.where(is_other, 1 / share, 1.0)

    def _grow(self, g: Any, h: Any, used: Any, number: int) -> Any:
        """Return the tree's predictions for all rows."""
        d = self.bins.shape[1]
        of_tree = self._draw(list(range(d)), self.colsample_bytree, TREE, number)
        # A node: its rows, the rows that it is grown on, depth, path, value.
        nodes = [(np.ones(len(g), bool), 0, 1, 0.0)]
        self.counts.append([int(used.sum())])

        def search(node: Any) -> tuple[float, int, int]:
            at, depth, path, value = node
            features = self._draw(of_tree, self.colsample_bylevel, LEVEL, number, depth)
            features = self._draw(features, self.max_features, NODE, number, path)
            best = (0.0, -1, -1)
            rows = at & used
            loss = g[rows].sum() * value
            for j in features:
                for b in range(int(self.bins[:, j].max())):
                    left = rows & (self.bins[:, j] <= b)
                    right = rows & ~left
                    if min(left.sum(), right.sum()) < self.min_samples_leaf:
                        continue
                    if min(h[left].sum(), h[right].sum()) < 1e-3:
                        continue
                    gain = loss + sum(
                        g[side].sum() ** 2 / (h[side].sum() + self.l2) for side in (left, right)
                    )
                    if gain > best[0] * (1 + 1e-9):
                        best = (gain, j, b)
            return best

        found = [search(nodes[0])]
        number_of = [0]
        n_nodes = 1
        done: list[Any] = []
        while nodes:
            order = [
                (node[1] if self.depthwise else 0, -best[0], i)
                for node, best, i in zip(nodes, found, number_of, strict=True)
            ]
            at = order.index(min(order))
            node, (gain, j, b) = nodes.pop(at), found.pop(at)
            number_of.pop(at)
            if gain <= 0 or len(nodes) + len(done) + 1 >= self.max_leaf_nodes:
                done.append(node)
                continue
            rows, depth, path, _ = node
            for side in (0, 1):
                mask = rows & ((self.bins[:, j] <= b) == (side == 0))
                used_rows = mask & used
                value = -g[used_rows].sum() / (h[used_rows].sum() + self.l2)
                child = (mask, depth + 1, 2 * path + side, value)
                nodes.append(child)
                found.append(search(child))
                number_of.append(n_nodes + side)
                self.counts[-1].append(int(used_rows.sum()))
            n_nodes += 2
        answer = np.zeros(len(g))
        for rows, _, _, value in done:
            answer[rows] = value
        return answer

    def _draw(self, features: list[int], share: float, *place: int) -> list[int]:
        """Return a share of some features."""
        if share == 1:
            return features
        drawn = draw_by_hash(np.array(features), self.seed, *place)
        n = max(1, math.ceil(share * len(features)))
        return sorted(np.array(features)[np.argsort(drawn)[:n]].tolist())
