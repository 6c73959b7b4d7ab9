"""`Run`: how fits are distributed over a cluster, as one parameter of every estimator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import (
    ParameterObject,
    describe_changes,
    find_changed_parameters,
)
from daskml_dist.errors.suggestions import suggest_nearest

if TYPE_CHECKING:
    from daskml_dist.compression import Compressor


@dataclass(kw_only=True, repr=False)
class Run(ParameterObject):
    """Layout of a fit on a cluster: the parameter `run` of every estimator.

    A nested parameter in scikit-learn's sense: names such as ``run__memory_budget`` work in
    ``set_params`` and in the grid of a search, even if the estimator's `run` is None, which means
    ``Run()``. Values are checked when an estimator is fitted. It is an error to change a parameter
    that the estimator does not use: estimators fitted by a :mod:`solver <daskml_dist.solvers>` have
    no parameter server and use neither `n_servers`, `compression` nor `shard`; of these estimators
    only :class:`~daskml_dist.linear_model.LogisticRegression` uses `compute_dtype`.

    Parameters
    ----------
    n_lanes : int or None, default=None
        Lanes: logical workers, each with its share of the rows. None: one lane for each worker
        thread, on the worker that holds the rows. With a number, the coefficients do not depend on
        the number of workers. No lane is empty: with fewer rows than lanes, there is one lane for
        each row. Without a cluster, several lanes have the same rows but shuffle them into other
        batches: without `shuffle` both give the same coefficients up to rounding.
    n_servers : int, default=1
        Shards of the parameter server, spread over the workers. With 1, a fit of one lane under
        ``"sync"`` has none.
    deterministic : bool, default=False
        Whether sums are added in the order of the lanes. With `n_lanes`, coefficients are then
        identical to the bit on any number of workers.
    compute_dtype : {"float16", "bfloat16"} or None, default=None
        Type in which a GPU stores the features of dense rows, at half the memory and time of
        float32: ``"float16"`` has 11 significant bits and values up to 65,504, ``"bfloat16"`` 8
        bits and the range of float32. All arithmetic is then in float32. A CPU stores and computes
        in float32.
    memory_budget : int or str, default="auto"
        Bytes that blocks may take on one worker, such as ``"2 GiB"``; ``"auto"`` is 40 % of its
        memory limit, and 60 % of the memory of a GPU that it uses. Rows that are not persisted and
        do not fit are read again in each pass (the next blocks are prefetched) and dropped after
        use. Trees leave half of the budget to the binned rows. For a table of ids, each server
        keeps rows of up to half the budget in memory, and the others in mapped files in Dask's
        ``temporary-directory``. A block larger than the budget is an error, and so are rows in
        memory that exceed it on each worker. Without a cluster, the budget has no effect: rows in
        memory stay there.
    on_lost_data : {"raise", "skip"}, default="raise"
        How to handle rows that were held only by a lost worker and that no task can compute again
        (they were scattered, without a replica): raise `DataLostError`, or continue without them;
        then ``history_.extra["lost_rows"]`` counts them.
    shard : {"rows", "features"}, default="rows"
        How data is divided among the lanes. With ``"features"``, each lane holds some columns of
        all rows and the parameters of these columns, for models that are too large for one worker.
        In each step the lanes' partial products of a batch are all-reduced; no parameter is sent.
        The iterates are those of one lane with all columns. For linear models and perceptrons
        trained by steps under ``"sync"`` or ``"allreduce"``; see :doc:`/columns`.
    compression : str, Compressor or None, default=None
        Compression, with error feedback, of the messages that lanes send to servers or to each
        other: ``"fp16"``, ``"8bit"``, ``"4bit"``, ``"1bit"``, ``"topk"``, ``"significant"``, under
        ``"allreduce"`` also ``"powersgd"`` and ``"ef21"``, or an object; see
        :mod:`daskml_dist.compression`. All policies but ``"hogwild"`` support it. Under ``"sync"``,
        ``"ssp"`` and ``"async"`` the coefficients then depend slightly on the number of workers,
        unless the run is `deterministic`.

    Examples
    --------
    >>> from daskml_dist import Run
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> clf = SGDClassifier(run=Run(n_lanes=2, deterministic=True))
    >>> clf.set_params(run__memory_budget="1 GiB").run
    Run(n_lanes=2, deterministic=True, memory_budget='1 GiB')
    """

    n_lanes: int | None = None
    n_servers: int = 1
    deterministic: bool = False
    compute_dtype: str | None = None
    memory_budget: int | str = "auto"
    on_lost_data: str = "raise"
    shard: str = "rows"
    compression: str | Compressor | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the values of all parameters by name; `deep` is ignored: none is nested."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            There is no such parameter. In this case no parameter is set.
        """
        current = self.get_params()
        # All names are checked before any is set.
        for name in params:
            if name not in current:
                raise InvalidParameterError(
                    f"Run has no parameter {name!r}. Use one of {list(current)}."
                    f"{suggest_nearest(name, current)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def changed(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults, by name."""
        return find_changed_parameters(self)

    def __repr__(self) -> str:
        return describe_changes(self)
