"""`Run`: how fits are laid out over a cluster, as one parameter of every estimator."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.errors.suggestions import suggest_nearest

if TYPE_CHECKING:
    from daskml_dist.compression import Compressor


@dataclass(kw_only=True, repr=False)
class Run(NamedParameters):
    """Layout of fits over a cluster: the parameter `run` of every estimator.

    A nested parameter as scikit-learn knows them: ``run__memory_budget`` and its like work in
    ``set_params`` and in a search's grid, also of an estimator whose `run` is None, which stands
    for ``Run()``. Values are checked when an estimator is fitted. A value other than the default
    that an estimator does not use is an error: estimators fitted by a
    :mod:`solver <daskml_dist.solvers>` have no parameter server and use neither `n_servers`,
    `compression` nor `shard`, and of them
    :class:`~daskml_dist.linear_model.LogisticRegression` alone uses `compute_dtype`.

    Parameters
    ----------
    n_lanes : int or None, default=None
        Logical workers of the maths. None: one a worker thread, where the rows lie. With a
        number the coefficients do not depend on how many workers there are. No lane is without
        rows: where these are fewer than the number, lanes have one each.
    n_servers : int, default=1
        Shards of the parameter server, spread over the workers. With 1, a fit of one lane under
        ``"sync"`` has none.
    deterministic : bool, default=False
        Sum in lane order: with `n_lanes`, the same coefficients to the bit whatever the workers.
    compute_dtype : {"float16", "bfloat16"} or None, default=None
        How a GPU stores the features of dense rows: either takes half the memory and the time of
        float32; ``"float16"`` holds 11 bits of numbers up to 65,504, ``"bfloat16"`` 8 bits in the
        range of float32. All arithmetic is float32 then, on a CPU too, which stores float32.
    memory_budget : int or str, default="auto"
        Bytes that blocks may take on one worker, such as ``"2 GiB"``; ``"auto"`` is 40 % of its
        memory limit, and 60 % of the memory of a GPU that it uses. Rows that were not persisted
        and do not fit are read again in each pass, the next blocks ahead of time, and dropped
        after use. Trees leave half of it to the bins that they make of rows. A block that is
        larger is an error, and so are rows in memory that take more on each worker. Without a
        cluster rows in memory stay where they are, and it has no effect.
    on_lost_data : {"raise", "skip"}, default="raise"
        What to do when rows go with the only worker that held them, and no recipe can make them
        again (data that was scattered, without a replica): raise `DataLostError`, or go on
        without them; then ``history_.extra["lost_rows"]`` counts them.
    shard : {"rows", "features"}, default="rows"
        What lanes hold. With ``"features"`` each has some columns of all rows, and the parameters
        that belong to these, for models that are too large for a worker: at each step the sums of
        products of a batch are all-reduced, and no parameter travels. The steps are those of one
        lane of all columns. For linear models and perceptrons by steps under ``"sync"`` or
        ``"allreduce"``; see :doc:`/columns`.
    compression : str, Compressor or None, default=None
        Makes what trainers push to servers smaller, with error feedback: ``"fp16"``, ``"8bit"``,
        ``"topk"``, ``"significant"`` or an object; see :mod:`daskml_dist.compression`. For the
        policies ``"sync"``, ``"ssp"`` and ``"async"``. The coefficients then depend a little on
        how many workers there are, but not with `deterministic`.

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
        """Values of all parameters by name; `deep` is there for scikit-learn's sake."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            There is no such parameter; nothing is set then.
        """
        known = self.get_params()
        for name in params:
            if name not in known:
                raise InvalidParameterError(
                    f"Run has no parameter {name!r}. Use one of {list(known)}."
                    f"{suggest_nearest(name, known)}"
                )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def changed(self) -> dict[str, Any]:
        """Return the parameters that differ from their defaults, by name."""
        defaults = {field.name: field.default for field in fields(self)}
        return {n: v for n, v in self.get_params().items() if repr(v) != repr(defaults[n])}

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.changed().items())
        return f"Run({told})"
