"""Estimate where a fit runs best, and the time and memory that it takes at each place.

python -m daskml_dist plan rows.parquet --target label --workers 2
"""

from __future__ import annotations

import argparse

from daskml_dist.cli._models import add_arguments as add_estimator
from daskml_dist.cli._models import make_estimator
from daskml_dist.cli._places import add_arguments as add_places
from daskml_dist.cli._places import open_client
from daskml_dist.cli._rows import add_arguments as add_rows
from daskml_dist.cli._rows import read_here, read_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_rows(parser)
    add_estimator(parser)
    add_places(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from daskml_dist.planning import advise

    model = make_estimator(arguments.estimator, arguments.set, policy=arguments.policy)
    rows = read_rows(arguments)
    with open_client(arguments) as client:
        X, y = rows.X, rows.y
        # A plan needs the number of rows, which is known only after the files are read. On a
        # cluster the rows stay with its workers, and only the lengths of the blocks are sent to
        # this process.
        if rows.is_lazy:
            X, y = read_here(rows) if client is None else client.persist([X, y])
            if client is not None:
                X, y = (part.to_dask_array(lengths=True) for part in (X, y))
        print(advise(X, model, y, client))
    return 0
