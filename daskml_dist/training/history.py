"""History of a fit, pass by pass; an estimator keeps it as ``history_``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, overload

from daskml_dist.diagnostics.curves import make_curves_html
from daskml_dist.errors import DaskMLDistError, InvalidParameterError

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

__all__ = ["EVAL_KEYS", "RECORD_KEYS", "History"]


#: Keys of a record, with the label of each one's axis in a plot.
RECORD_KEYS = {
    "pass": "pass",
    "loss": "mean training loss",
    "rows": "rows",
    "steps": "steps",
    "seconds": "wall time (s)",
    "bytes_pushed": "pushed (bytes)",
    "bytes_pulled": "pulled (bytes)",
    "staleness_mean": "mean staleness (versions)",
    "staleness_max": "largest staleness (versions)",
    "val_score": "validation score",
}
#: Further keys of a record, if ``fit`` was given an `eval_set`.
EVAL_KEYS = {"eval_score": "score of the eval_set", "eval_seconds": "time of that score (s)"}
Records = Sequence[dict[str, Any]]


@dataclass(repr=False)
class History:
    """Records of a fit, one per pass over the data.

    Parameters
    ----------
    records : list of dict
        One per pass, in order, each with the keys

        - ``pass``: its number, from 1;
        - ``loss``: mean training loss over the pass; NaN if the pass has no loss;
        - ``rows``: rows used;
        - ``steps``: number of optimizer updates;
        - ``seconds``: wall time of the pass;
        - ``bytes_pushed``, ``bytes_pulled``: traffic between trainers and servers;
        - ``staleness_mean``, ``staleness_max``: versions between a pull and the apply of its
          gradient;
        - ``staleness_counts``: how many of these are 0, 1, 2 to 3, 4 to 7, ... versions;
        - ``val_score``: score on the held-out rows; None without early stopping;
        - ``eval_score``, ``eval_seconds``: if ``fit`` was given an `eval_set`: its score, and the
          seconds that this took; with several sets or scores also ``eval_score_SET_SCORE``;
        - ``clients``: under `FederatedAveraging`, the lanes that were drawn for the round.
    extra : dict
        Facts of the whole fit: policy, number of lanes and servers, ``partial_rows`` (rows applied
        after the last whole pass), and ``streamed`` (whether rows were read in each pass).
        ``generations`` lists the changes of membership (workers lost, leaving or joining), each
        with its number, reason, ``lost_versions`` (updates that were repeated), ``restarted``
        (whether the fit started again), ``from_pass`` (the number of saved passes it started from)
        and ``seconds``. ``dropped_pushes`` counts pushes that came twice or too late, none of which
        was applied, and ``lost_rows`` the rows that were permanently lost. On a cluster,
        ``seatings`` lists the workers that ran the lanes, one entry per change: ``generation``;
        ``workers``, the address of each lane's worker; ``at``, the seconds from the start of
        training to the change; and ``seconds``, how long the change took. ``seconds`` of the fit is
        the time that training took. If blocks were moved because they were unevenly distributed:
        ``skew``, the rows of the largest lane divided by those of an even one, and ``moved_bytes``.
    interrupted : bool, default=False
        Whether Ctrl-C ended the fit; the estimator then holds its state at that moment.

    Examples
    --------
    >>> from daskml_dist.training.history import History
    >>> history = History([{"pass": 1, "loss": 0.5, "rows": 1000, "seconds": 0.25}])
    >>> history
    <History: 1 pass, loss 0.5, 0.25 s>
    >>> history.rows_per_second
    [4000.0]
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self.records[index]

    def __repr__(self) -> str:
        if not self.records:
            return "<History: no whole pass>"
        # First and last loss; only one if they are equal.
        losses = list(dict.fromkeys(f"{self[i]['loss']:.6g}" for i in (0, -1)))
        seconds = sum(record["seconds"] for record in self)
        parts = ["1 pass" if len(self) == 1 else f"{len(self)} passes"]
        if losses != ["nan"]:
            parts.append(f"loss {' -> '.join(losses)}")
        end = ", interrupted" if self.interrupted else ""
        return f"<History: {', '.join(parts)}, {seconds:.3g} s{end}>"

    def _repr_html_(self) -> str:
        return _history_html(self.records, self.extra, self.interrupted)

    @property
    def rows_per_second(self) -> list[float]:
        """Return the rows per second of wall time, for each pass; NaN if a pass took no time."""
        return [r["rows"] / r["seconds"] if r["seconds"] > 0 else float("nan") for r in self]

    def to_frame(self) -> pandas.DataFrame:
        """Give the records as a table.

        Returns
        -------
        pandas.DataFrame
            One row per pass, one column per key. ``val_score`` is float64, and NaN where there is
            no score.

        Raises
        ------
        DaskMLDistError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise DaskMLDistError(
                "History.to_frame needs pandas: pip install 'daskml-dist[dataframe]'; "
                "History.records holds the same as plain dicts"
            ) from error
        frame = pandas.DataFrame(self.records, columns=None if self else list(RECORD_KEYS))
        return frame.astype({"val_score": "float64"} if "val_score" in frame else {})

    def plot(self, y: str = "loss", ax: Axes | None = None) -> Axes:
        """Draw one key of the records over the passes.

        Parameters
        ----------
        y : str, default="loss"
            A key of the records, or ``"rows_per_second"``.
        ax : matplotlib.axes.Axes or None, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        InvalidParameterError
            `y` is not a key of the records, or was not recorded in this fit.
        DaskMLDistError
            matplotlib is not installed.
        """
        values = self._values_of_key(y)
        try:
            from matplotlib import pyplot
            from matplotlib.ticker import MaxNLocator
        except ImportError as error:
            raise DaskMLDistError(
                "History.plot needs matplotlib: pip install 'daskml-dist[viz]'"
            ) from error
        if ax is None:
            _, ax = pyplot.subplots()
        # A marker, since the line of a single pass has no length.
        ax.plot([record["pass"] for record in self], values, marker=".", label=y)
        ax.set_xlabel(RECORD_KEYS["pass"])
        ax.set_ylabel((RECORD_KEYS | EVAL_KEYS).get(y, "rows per second"))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        return ax

    def _values_of_key(self, key: str) -> list[float]:
        """Return the values of one key over the passes."""
        if key == "rows_per_second":
            return self.rows_per_second
        if key not in RECORD_KEYS | EVAL_KEYS and not any(key in record for record in self):
            valid = ", ".join([*RECORD_KEYS, "rows_per_second"])
            raise InvalidParameterError(f"History has no {key!r}; choose one of {valid}")
        # Records of older passes may lack a key.
        values = [record.get(key) for record in self]
        if values and all(value is None for value in values):
            raise InvalidParameterError(
                f"this fit recorded no {key!r}; val_score needs early_stopping=True, eval_score "
                "fit(..., eval_set=(X, y))"
            )
        return [float("nan") if value is None else value for value in values]


def _history_html(records: Records, extra: dict[str, Any], interrupted: bool) -> str:
    """Return a history's curves and a table of its facts as HTML."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">'
        f"{escape(text)}</td></tr>"
        for name, text in _list_history_facts(records, extra, interrupted)
    )
    return (
        '<div class="daskml-history" style="display:flex;flex-wrap:wrap;gap:1em;'
        f'align-items:flex-start">{make_curves_html(records)}<table>{rows}</table></div>'
    )


def _list_history_facts(
    records: Records, extra: dict[str, Any], interrupted: bool
) -> list[tuple[str, str]]:
    """Return labels and texts of the facts of a fit."""
    seconds, rows = (sum(record[key] for record in records) for key in ("seconds", "rows"))
    passes = f"{len(records)}, in {seconds:.3g} s" + ", interrupted" * interrupted
    # Only facts that this fit has are listed.
    facts = [("passes", passes)]
    if seconds > 0:
        facts.append(("rows a second", f"{rows / seconds:,.0f}"))
    if n_bytes := sum(record["bytes_pushed"] + record["bytes_pulled"] for record in records):
        facts.append(("traffic", f"{n_bytes / 1e6:,.1f} MB"))
    names = {"policy": "policy", "n_lanes": "lanes", "n_servers": "servers"}
    facts += [(names[key], str(extra[key])) for key in names if extra.get(key)]
    if lost := extra.get("lost_rows"):
        facts.append(("rows lost for good", f"{lost:,}"))
    for event in extra.get("generations", ()):
        facts.append((f"generation {event['generation']}", str(event["reason"])))
    return facts
