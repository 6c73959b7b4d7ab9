"""Generated clicks: ids with power-law frequencies, and labels from a known FM model.

The weight and the factors of an id are computed from a hash of seed, field and id, so no data is
stored for ids, however many there are. Rows are drawn in units, as in the other data sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from daskml_dist.data.conversion import load_pandas
from daskml_dist.datasets._generated import UNIT_ENTRIES, check_counts, make_streams
from daskml_dist.errors import InvalidParameterError
from daskml_dist.parameters.checks import check_number

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

#: Number of rows from which the intercept for a click rate is found.
_SAMPLE_ROWS = 8192
#: Variance over all rows of the linear terms, and of the products of pairs, in the log-odds.
_LINEAR_VARIANCE = _PAIR_VARIANCE = 1.0
#: Number of bisections of the intercept's range, from -50 to 50: accuracy 1e-10.
_HALVINGS = 40
# Increment and factors of splitmix64.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def make_clicks(
    n_rows: int = 1000,
    *,
    n_fields: int = 26,
    n_ids: int = 10_000,
    n_numeric: int = 13,
    zipf: float = 1.1,
    drift: float = 0.0,
    n_factors: int = 4,
    click_rate: float = 0.25,
    return_probability: bool = False,
    random_state: Any = None,
    chunks: Any = "auto",
) -> Any:
    """Generate rows of ids and numbers, with clicks drawn from a factorization machine.

    The ids of a field follow a power law, like ids of users, sites and advertisements: a few ids
    make up most of the rows, and most ids are rare. The log-odds of a click are the sum of an
    intercept, a weight of each field's id or number, and the scalar products of the factors of all
    pairs of fields.

    Parameters
    ----------
    n_rows : int, default=1000
    n_fields : int, default=26
        Fields of ids, columns ``C1``, ``C2``, ...
    n_ids : int, default=10_000
        Number of ids that a field has at any time.
    n_numeric : int, default=13
        Standard normal columns ``I1``, ``I2``, ...; may be 0.
    zipf : float, default=1.1
        Exponent of the power law: the id of rank r has a share of about ``r ** -zipf``; 0: all ids
        have the same share.
    drift : float, default=0.0
        Number of times that each id is replaced by a new one, between the first row and the last,
        each at another time; with 0.5, half of the ids are replaced.
    n_factors : int, default=4
        Length of the factors.
    click_rate : float, default=0.25
        Share of clicks.
    return_probability : bool, default=False
        Whether to return the probabilities of clicks too.
    random_state : int, RandomState or None, default=None
    chunks : int, tuple of int or "auto", default="auto"
        Rows of the partitions. The generated rows do not depend on it.

    Returns
    -------
    frame : dask DataFrame
        ``label`` as int8, numbers as float32, ids as int64. The index counts the rows.
    probability : dask Series of float64
        Only with `return_probability`: the true probability of each click; no prediction can be
        better.

    Raises
    ------
    InvalidParameterError
        A parameter is out of range.

    Notes
    -----
    Ranks are drawn from a continuous power law and truncated to integers. Linear terms and pairs
    have a variance of about 1 each.

    References
    ----------
    S. Rendle, "Factorization Machines", ICDM 2010.

    Examples
    --------
    >>> from daskml_dist.datasets import make_clicks
    >>> frame = make_clicks(5000, n_fields=3, n_numeric=1, random_state=0, chunks=2000)
    >>> frame.columns.tolist(), frame.npartitions
    (['label', 'I1', 'C1', 'C2', 'C3'], 3)
    >>> bool(abs(frame["label"].mean().compute() - 0.25) < 0.05)
    True
    """
    n_rows, n_ids, n_factors, n_fields = check_counts(
        n_rows=n_rows, n_ids=n_ids, n_factors=n_factors, n_fields=n_fields
    )
    (n_numeric,) = check_counts(0, n_numeric=n_numeric)
    check_number("zipf", zipf)
    check_number("drift", drift)
    check_number("click_rate", click_rate, lambda v: 0 < v < 1, "between 0 and 1")
    load_pandas()
    import dask.dataframe as dd

    _, seed = make_streams(random_state)
    model = _ClickModel(
        seed, n_rows, n_fields, n_ids, n_numeric, float(zipf), float(drift), n_factors
    )
    model = model.with_click_rate(float(click_rate))
    # Dask chooses or checks the chunks, as for an array of 8-byte entries; columns are not split.
    try:
        shape = (n_rows, n_fields + n_numeric + 1)
        sizes = da.core.normalize_chunks((chunks, -1), shape, dtype=np.dtype(np.int64))[0]
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(
            f'chunks={chunks!r}: use a number of rows, those of all partitions, or "auto".'
        ) from error
    # The index counts the rows, so the first row numbers of the partitions are their divisions.
    stops = np.cumsum(sizes).tolist()
    starts = [0, *stops[:-1]]
    frame = dd.from_map(
        partial(_draw_partition, model),
        starts,
        stops,
        meta=_draw_partition(model, 0, 0),
        divisions=(*starts, n_rows - 1),
        label="make-clicks",
    )
    columns = [name for name in frame.columns if name != _PROBABILITY]
    return (frame[columns], frame[_PROBABILITY]) if return_probability else frame[columns]


_PROBABILITY = "probability"


@dataclass(frozen=True)
class _ClickModel:
    """Known model from which the rows of :func:`make_clicks` are drawn.

    Parameters
    ----------
    seed : int
    n_rows, n_fields, n_ids, n_numeric, zipf, drift, n_factors
        As in :func:`make_clicks`.
    intercept : float
    """

    seed: int
    n_rows: int
    n_fields: int
    n_ids: int
    n_numeric: int
    zipf: float
    drift: float
    n_factors: int
    intercept: float = 0.0

    def with_click_rate(self, rate: float) -> _ClickModel:
        """Return the model with the intercept that gives a click rate."""
        rng = np.random.default_rng((2, self.seed))
        times = rng.random(_SAMPLE_ROWS)
        log_odds = self.find_log_odds(*self.draw_features(rng, times))
        low, high = -50.0, 50.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_less = expit(log_odds + middle).mean() < rate
            low, high = (middle, high) if is_less else (low, middle)
        fields = {**vars(self), "intercept": (low + high) / 2}
        return _ClickModel(**fields)

    def draw_features(
        self, rng: np.random.Generator, times: Floats
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Draw numbers and ids of rows, given their times from 0 to 1."""
        numbers = rng.standard_normal((len(times), self.n_numeric)).astype(np.float32)
        shares = rng.random((len(times), self.n_fields))
        # Inverse of the distribution function of a power law on [1, n_ids + 1].
        end, power = self.n_ids + 1.0, 1.0 - self.zipf
        if abs(power) < 1e-9:
            real_ranks = end**shares
        else:
            real_ranks = (1.0 + shares * (end**power - 1.0)) ** (1.0 / power)
        ranks = np.minimum(real_ranks.astype(np.int64), self.n_ids) - 1
        if not self.drift:
            return numbers, ranks
        # An id is replaced when drift * time plus its random phase passes an integer.
        fields = np.arange(self.n_fields)
        phases = _draw_uniforms(_mix_words(self._key(fields), ranks))
        ages = np.floor(self.drift * times[:, None] + phases).astype(np.int64)
        return numbers, ranks + self.n_ids * ages

    def find_log_odds(self, numeric_values: NDArray[np.float32], ids: NDArray[np.int64]) -> Floats:
        """Return the log-odds of clicks."""
        n_terms = self.n_fields + self.n_numeric
        # A number has the weight and the factors of an id 0 in its field.
        keys = self._key(np.arange(n_terms))
        term_ids = np.concatenate([ids, np.zeros((len(ids), self.n_numeric), np.int64)], axis=1)
        hashes = _mix_words(keys, term_ids)
        values = np.concatenate([np.ones(ids.shape), numeric_values], axis=1)

        def sum_effects(factor_index: int) -> tuple[Floats, Floats]:
            """Return sums, over terms, of effect times value, and of their squares."""
            effects = (_draw_uniforms(_mix_words(hashes, np.int64(factor_index))) - 0.5) * np.sqrt(
                12.0
            )
            effects *= values
            return effects.sum(axis=1), np.square(effects).sum(axis=1)

        total = self.intercept + sum_effects(0)[0] * np.sqrt(_LINEAR_VARIANCE / n_terms)
        n_pairs = n_terms * (n_terms - 1) / 2
        if n_pairs:
            pairs = np.zeros(len(ids))
            for factor in range(1, self.n_factors + 1):
                # The sum over pairs, from the square of the sum and the sum of squares (Rendle).
                sums, squares = sum_effects(factor)
                pairs += (sums**2 - squares) / 2
            total = total + pairs * np.sqrt(_PAIR_VARIANCE / (n_pairs * self.n_factors))
        return np.asarray(total)

    def draw(self, first: int, n: int) -> tuple[Any, ...]:
        """Draw the unit of `n` rows from row `first`: numbers, ids, probabilities, labels."""
        rng = np.random.default_rng((1, self.seed, first))
        times = (first + np.arange(n)) / max(self.n_rows, 1)
        numbers, ids = self.draw_features(rng, times)
        probabilities = expit(self.find_log_odds(numbers, ids))
        labels = (rng.random(n) < probabilities).astype(np.int8)
        return numbers, ids, probabilities, labels

    def _key(self, fields: NDArray[Any]) -> Words:
        """Return distinct words for the fields, which depend on the seed."""
        return _mix_words(np.full(1, self.seed, np.uint64), fields)


def _mix_words(words: Words, integers: Any) -> Words:
    """Return hashes of words and integers, by splitmix64."""
    # Always use arrays, even for one number: NumPy warns if scalars wrap around.
    steps = np.atleast_1d(integers).astype(np.uint64) + np.uint64(1)
    mixed: Words = words + steps * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FACTORS[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _FACTORS[1]
    return mixed ^ (mixed >> np.uint64(31))


def _draw_uniforms(words: Words) -> Floats:
    """Return the words as numbers from 0 to 1."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _draw_partition(model: _ClickModel, start: int, stop: int) -> Any:
    """Return the rows from `start` to `stop`: draw all units that contain them, and cut."""
    pandas = load_pandas()
    n = max(UNIT_ENTRIES // (model.n_fields + model.n_numeric), 1)
    first = start // n
    units = [model.draw(u * n, n) for u in range(first, max(-(-stop // n), first + 1))]
    window = slice(start - first * n, stop - first * n)
    numbers, ids, probabilities, labels = (
        np.concatenate(column)[window] for column in zip(*units, strict=True)
    )
    columns: dict[str, Any] = {"label": labels}
    columns |= {f"I{j + 1}": numbers[:, j] for j in range(model.n_numeric)}
    columns |= {f"C{j + 1}": ids[:, j] for j in range(model.n_fields)}
    index = pandas.RangeIndex(start, stop)
    return pandas.DataFrame({**columns, _PROBABILITY: probabilities}, index=index)
