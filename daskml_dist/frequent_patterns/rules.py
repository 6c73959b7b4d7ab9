"""`association_rules`: all ways to split frequent itemsets in two, measured with array code.

Itemsets of one length are arrays of item numbers; a subset is found by a binary search over byte
keys (`_make_row_keys`), so there is no Python loop over the sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.conversion import convert_foreign, load_pandas
from daskml_dist.data.lazy import is_dask_frame
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.parameters.checks import check_number, check_one_of
from daskml_dist.solvers.apriori import itemset_cuts

RULE_METRICS = (
    "support",
    "confidence",
    "lift",
    "leverage",
    "conviction",
    "zhangs_metric",
    "jaccard",
    "certainty",
    "kulczynski",
)

Array = NDArray[Any]


@suggest_arguments
def association_rules(
    itemsets: Any, *, metric: str = "confidence", min_threshold: float = 0.8
) -> Any:
    """Derive association rules from frequent itemsets.

    Each itemset is split in two in all possible ways. No data other than the frame is read.

    Parameters
    ----------
    itemsets : pandas.DataFrame
        The result of :func:`frequent_itemsets`: columns ``support``, ``count`` and ``itemset``,
        with all subsets of each set. Sets may be lists, as of a frame that was stored in a file.
    metric : str, default="confidence"
        Measure by which rules are kept; one of the measures below.
    min_threshold : float, default=0.8
        Smallest value of the measure.

    Returns
    -------
    pandas.DataFrame
        One rule per row, the highest values of `metric` first: ``antecedent`` and ``consequent``
        (tuples), and the measures as float64:

        - ``support``: share of the baskets that contain both;
        - ``confidence``: share of these among the baskets that contain the antecedent;
        - ``lift``: confidence divided by the consequent's own support; 1 if the two are
          independent;
        - ``leverage``: support minus the support expected for independent sets;
        - ``conviction``: how often the rule would fail for independent sets, divided by how often
          it fails; infinite if it never fails;
        - ``zhangs_metric``: leverage divided by its largest possible value, from -1 (never
          together) to 1 (always together); 0 for independent sets;
        - ``jaccard``: share of the baskets that contain both among those that contain either;
        - ``certainty``: confidence minus the consequent's own support, divided by the share of the
          baskets without the consequent; 0 if all baskets contain it;
        - ``kulczynski``: mean of the confidences of the rule and of the reversed rule;
        - ``representativity``, only for itemsets found with `null_values`: share of the baskets in
          which all items of the rule are known. Supports are then those of `itemsets`, and a
          confidence is the share of the baskets that contain both among those that contain the
          antecedent and in which the consequent is known.

    Raises
    ------
    InvalidParameterError
        For another metric, or a threshold that is not a number.
    InvalidDataError
        `itemsets` is not such a frame, or lacks a subset of one of its sets.

    See Also
    --------
    frequent_itemsets

    References
    ----------
    Agrawal and Srikant, "Fast algorithms for mining association rules", VLDB 1994. Brin, Motwani,
    Ullman and Tsur, "Dynamic itemset counting and implication rules for market basket data",
    SIGMOD 1997 (lift, conviction). Piatetsky-Shapiro, "Discovery, analysis, and presentation of
    strong rules", 1991 (leverage). Yan, Zhang and Zhang, "Confidence metrics for association rule
    mining", Applied Artificial Intelligence 23(8), 2009 (Zhang's metric). Wu, Chen and Han,
    "Re-examination of interestingness measures in pattern mining", Data Mining and Knowledge
    Discovery 21(3), 2010 (Kulczynski, Jaccard). Berzal et al., "Measuring the accuracy and interest
    of association rules", Intelligent Data Analysis 6(3), 2002 (certainty).

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.frequent_patterns import association_rules, frequent_itemsets
    >>> baskets = pd.DataFrame({"bread": [1, 1, 0, 1], "milk": [1, 1, 1, 0], "tea": [0, 0, 1, 0]})
    >>> rules = association_rules(frequent_itemsets(baskets), min_threshold=0.6)
    >>> rules[["antecedent", "consequent", "confidence"]].round(2)
      antecedent consequent  confidence
    0   (bread,)    (milk,)        0.67
    1    (milk,)   (bread,)        0.67
    """
    check_one_of("metric", metric, RULE_METRICS)
    check_number("min_threshold", min_threshold, lambda v: True, "that is finite")
    sets = _ItemsetsByLength(_convert_lists_of_items(convert_foreign(itemsets)))
    # Filter the rules split by split: all rules of long sets together may not fit in memory.
    chosen_rules: list[dict[str, Array]] = []
    for rules in sets.rules():
        passes = rules[metric] >= min_threshold
        chosen_rules.append({name: values[passes] for name, values in rules.items()})
    names: list[str] = ["antecedent", "consequent", *RULE_METRICS]
    if sets.split_counts is not None:
        names.append("representativity")
    columns = {name: np.concatenate([part[name] for part in chosen_rules]) for name in names}
    # Rules with equal values stay in the order of the sets, short antecedents first.
    order = np.argsort(-columns[metric], kind="stable")
    return load_pandas().DataFrame({name: values[order] for name, values in columns.items()})


class _ItemsetsByLength:
    """Itemsets of a frame, grouped by length.

    Parameters
    ----------
    frame : pandas.DataFrame
    """

    def __init__(self, frame: Any) -> None:
        _check_itemsets_frame(frame)
        self.sets = frame["itemset"].to_numpy()
        self.support = frame["support"].to_numpy(np.float64)
        self.count = frame["count"].to_numpy(np.float64)
        #: For each set, the number of baskets for each split in two (`itemset_cuts`); None if all
        #: items are known.
        self.split_counts = self.representativity = None
        if "split_counts" in frame.columns:
            self.split_counts = frame["split_counts"].to_numpy()
            self.representativity = frame["representativity"].to_numpy(np.float64)
        # Items are numbered in the order of their first occurrence.
        lengths = np.fromiter(map(len, self.sets), np.int64, len(self.sets))
        items = chain.from_iterable(self.sets)
        self._item_codes: dict[Any, int] = {item: i for i, item in enumerate(dict.fromkeys(items))}
        self._lengths = [int(n) for n in np.unique(lengths)]
        #: For each length: positions in the frame, sorted by key; and the sorted keys.
        self._positions_by_length: dict[int, Array] = {}
        self._sorted_keys: dict[int, Array] = {}
        self._codes: dict[int, Array] = {}
        for length in self._lengths:
            (positions,) = np.nonzero(lengths == length)
            items_of_length = chain.from_iterable(self.sets[positions])
            codes = np.fromiter(
                (self._item_codes[item] for item in items_of_length),
                np.int64,
                len(positions) * length,
            )
            self._codes[length] = codes = codes.reshape(-1, length)
            keys = _make_row_keys(codes)
            order = np.argsort(keys, kind="stable")
            self._positions_by_length[length], self._sorted_keys[length] = (
                positions[order],
                keys[order],
            )

    def rules(self) -> Iterator[dict[str, Array]]:
        """Yield the rules of all sets, for one length and split at a time; first an empty part."""
        empty = np.empty(0, np.int64)
        yield self._measure_rules(empty, empty, empty, (np.empty(0), np.empty(0)))
        for length in self._lengths:
            codes = self._codes[length]
            positions = self._find_places(codes)
            # Each split is a choice of positions, equal for all sets of a length.
            cuts = {cut: number for number, cut in enumerate(itemset_cuts(length))}
            for left_side, number in cuts.items():
                right_side = tuple(j for j in range(length) if j not in left_side)
                sides = (
                    self._find_places(codes[:, list(left_side)]),
                    self._find_places(codes[:, list(right_side)]),
                )
                numbers = number, cuts[right_side]
                yield self._measure_rules(
                    positions, *sides, self._count_bases(positions, sides, numbers)
                )

    def _count_bases(
        self,
        set_positions: Array,
        side_positions: tuple[Array, Array],
        split_columns: tuple[int, int],
    ) -> tuple[Array, Array]:
        """Return the denominators of the confidences of rules, and of the reversed rules.

        They count the baskets that contain one side and in which the other side is known.
        """
        if self.split_counts is None or not len(set_positions):
            return self.count[side_positions[0]], self.count[side_positions[1]]
        counts = np.array(self.split_counts[set_positions].tolist(), np.float64)
        return counts[:, split_columns[0]], counts[:, split_columns[1]]

    def _find_places(self, codes: Array) -> Array:
        """Return the positions of itemsets in the frame."""
        length, wanted_keys = codes.shape[1], _make_row_keys(codes)
        # Binary search in the sorted keys of this length; a missing key means an incomplete frame.
        keys = self._sorted_keys.get(length, wanted_keys[:0])
        key_positions = np.minimum(np.searchsorted(keys, wanted_keys), max(len(keys) - 1, 0))
        is_known = (
            keys[key_positions] == wanted_keys if len(keys) else np.zeros(len(wanted_keys), bool)
        )
        if not is_known.all():
            items = list(self._item_codes)
            missing_set = tuple(items[code] for code in codes[int(is_known.argmin())])
            raise InvalidDataError(
                f"itemsets lacks {missing_set!r}, a subset of one of its sets: rules need the "
                "support of both sides. Give the whole frame that frequent_itemsets returned, or "
                "drop the larger sets."
            )
        return self._positions_by_length[length][key_positions]

    def _measure_rules(
        self, set_positions: Array, antecedent: Array, consequent: Array, bases: tuple[Array, Array]
    ) -> dict[str, Array]:
        """Return all measures of rules, given the positions of sets and of both sides."""
        support, left_support, right_support = (
            self.support[positions] for positions in (set_positions, antecedent, consequent)
        )
        # `left_support` and `right_support` are the supports of antecedent and consequent.
        confidence, backwards = (self.count[set_positions] / base for base in bases)
        leverage = support - left_support * right_support
        # The largest leverage that is possible with these supports (Zhang's denominator).
        max_leverage = np.maximum(
            support * (1 - left_support), left_support * (right_support - support)
        )
        measures = {
            "antecedent": self.sets[antecedent],
            "consequent": self.sets[consequent],
            "support": support,
            "confidence": confidence,
            "lift": confidence / right_support,
            "leverage": leverage,
            "conviction": _divide_or(1 - right_support, 1 - confidence, np.inf),
            "zhangs_metric": _divide_or(leverage, max_leverage, 0.0),
            "jaccard": support / (left_support + right_support - support),
            "certainty": _divide_or(confidence - right_support, 1 - right_support, 0.0),
            "kulczynski": (confidence + backwards) / 2,
        }
        if self.representativity is not None:
            measures["representativity"] = self.representativity[set_positions]
        return measures


def _divide_or(above: Array, below: Array, default: float) -> Array:
    """Return quotients; `default` if the divisor is not positive."""
    quotients = np.full(len(above), default)
    np.divide(above, below, out=quotients, where=below > 0)
    return quotients


def _make_row_keys(codes: Array) -> Array:
    """Return the item numbers of each row as one byte string, independent of their order."""
    ordered = np.ascontiguousarray(np.sort(codes, axis=1).astype(">u4"))
    # NumPy ignores trailing zero bytes, but since all keys have the same length, they stay
    # distinct.
    return ordered.view(f"S{4 * codes.shape[1]}").reshape(-1)


def _convert_lists_of_items(frame: Any) -> Any:
    """Return itemsets as tuples where they are lists or arrays, as read from a Parquet file."""
    if not is_dataframe_like(frame) or is_dask_frame(frame) or "itemset" not in frame.columns:
        return frame
    items = [
        tuple(itemset.tolist() if isinstance(itemset, np.ndarray) else itemset)
        if isinstance(itemset, list | np.ndarray)
        else itemset
        for itemset in frame["itemset"]
    ]
    return frame.assign(itemset=load_pandas().Series(items, frame.index, dtype=object))


def _check_itemsets_frame(frame: Any) -> None:
    """Raise unless a frame has the columns of `frequent_itemsets`, with valid values."""
    needed: Sequence[str] = ("support", "count", "itemset")
    if not is_dataframe_like(frame) or is_dask_frame(frame):
        raise InvalidDataError(
            f"itemsets is a {type(frame).__name__}. Give the pandas frame that frequent_itemsets "
            "returned."
        )
    if "representativity" in frame.columns:  # confidences would be wrong without split_counts
        needed = (*needed, "split_counts")
    if missing := [name for name in needed if name not in frame.columns]:
        raise InvalidDataError(
            f"itemsets has no column {' and '.join(map(repr, missing))}; it has "
            f"{list(frame.columns)}. Give the frame that frequent_itemsets returned."
        )
    wrong = [
        itemset
        for itemset in frame["itemset"]
        if not isinstance(itemset, tuple | frozenset) or not itemset
    ]
    if wrong:
        raise InvalidDataError(
            f"itemsets holds {wrong[0]!r} instead of a tuple of items. Give the frame that "
            "frequent_itemsets returned."
        )
    for name in ("support", "count"):
        values = np.asarray(frame[name])
        if values.dtype.kind not in "iuf" or not (values > 0).all():
            raise InvalidDataError(
                f"Column {name!r} of itemsets must hold numbers above 0. Give the frame that "
                "frequent_itemsets returned."
            )
