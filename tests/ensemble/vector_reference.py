"""Reference boosting with vector leaves in plain NumPy: searches over masks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Values of `solvers.tree_growth.TreeParams` and of LightGBM.
MIN_HESSIAN, CATEGORY_ROWS = 1e-3, 10


@dataclass
class VectorReference:
    """Boosting of the mean squared error of several targets, or of the log loss of classes."""

    max_iter: int = 6
    learning_rate: float = 0.1
    max_leaf_nodes: int = 7
    min_samples_leaf: int = 5
    l2: float = 0.0
    classes: bool = False

    def fit(
        self, bins: Any, missing: int, categorical: Any, target: Any, weight: Any
    ) -> VectorReference:
        """Boost; `target` has a column per output. Afterwards `raw` holds the sums of the trees."""
        self.bins, self.missing, self.categorical = bins, missing, categorical
        mean = np.average(target, axis=0, weights=weight)
        self.raw = np.tile(np.log(mean) if self.classes else mean, (len(target), 1))
        if self.classes:
            self.raw -= np.log(mean).mean()
        self.counts: list[list[int]] = []
        for _ in range(self.max_iter):
            if self.classes:
                p = np.exp(self.raw - self.raw.max(axis=1, keepdims=True))
                p /= p.sum(axis=1, keepdims=True)
                g, h = p - target, p * (1 - p)
            else:
                g, h = self.raw - target, np.ones_like(target)
            self.raw += self.learning_rate * self._grow(g * weight[:, None], h * weight[:, None])
        return self

    def _gain(self, g: Any, h: Any) -> float:
        """Return the contribution of one side of a split to the gain."""
        counts = h >= MIN_HESSIAN
        return float((g[counts] ** 2 / (h[counts] + self.l2)).sum())

    def _value(self, g: Any, h: Any) -> Any:
        return np.where(h >= MIN_HESSIAN, -g / np.maximum(h + self.l2, 1e-300), 0.0)

    def _splits(self, rows: Any, g: Any, h: Any) -> Any:
        """Yield masks of the rows that go to the left."""
        for j in range(self.bins.shape[1]):
            of, missing = self.bins[:, j], self.bins[:, j] == self.missing
            if self.categorical[j]:
                yield from self._category_splits(rows, of, g, h)
                continue
            last = int(of[~missing].max())
            for b in range(last + bool(missing.any())):
                yield (of <= b) & ~missing
            if missing.any():
                for b in range(last - 1, -1, -1):
                    yield (of <= b) | missing

    def _category_splits(self, rows: Any, of: Any, g: Any, h: Any) -> Any:
        known = [c for c in np.unique(of) if (rows & (of == c)).sum() >= CATEGORY_ROWS]
        for k in range(g.shape[1]):
            keys = [
                g[rows & (of == c), k].sum() / (h[rows & (of == c), k].sum() + CATEGORY_ROWS)
                for c in known
            ]
            order = np.array(known)[np.argsort(keys, kind="stable")]
            for i in range((len(order) + 1) // 2):
                yield np.isin(of, order[: i + 1])
            for i in range((len(order) + 1) // 2 - 1):
                yield np.isin(of, order[len(order) - 1 - i :])

    def _search(self, rows: Any, value: Any, g: Any, h: Any) -> tuple[float, Any]:
        best, mask = 0.0, None
        for left in self._splits(rows, g, h):
            sides = rows & left, rows & ~left
            if min(side.sum() for side in sides) < self.min_samples_leaf:
                continue
            sums = [(g[side].sum(axis=0), h[side].sum(axis=0)) for side in sides]
            if min(hessians.sum() for _, hessians in sums) < MIN_HESSIAN:
                continue
            gain = float(g[rows].sum(axis=0) @ value) + sum(self._gain(*of) for of in sums)
            if gain > best * (1 + 1e-9):
                best, mask = gain, left
        return best, mask

    def _grow(self, g: Any, h: Any) -> Any:
        """Return the tree's predictions for all rows; the largest gain is split first."""
        everywhere, zero = np.ones(len(g), bool), np.zeros(g.shape[1])
        leaves = [(everywhere, zero, *self._search(everywhere, zero, g, h))]
        self.counts.append([len(g)])
        while len(leaves) < self.max_leaf_nodes:
            at = int(np.argmax([gain for _, _, gain, _ in leaves]))
            rows, _, gain, left = leaves[at]
            if gain <= 0:
                break
            del leaves[at]
            for mask in (rows & left, rows & ~left):
                value = self._value(g[mask].sum(axis=0), h[mask].sum(axis=0))
                leaves.append((mask, value, *self._search(mask, value, g, h)))
                self.counts[-1].append(int(mask.sum()))
        answer = np.zeros_like(g)
        for rows, value, _, _ in leaves:
            answer[rows] = value
        return answer
