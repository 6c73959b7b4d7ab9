"""Serve fitted models over HTTP, with the Open Inference Protocol.

python -m daskml_dist serve models --port 8000 --workers 2 --watch

PATH is a model file, served under its name without the suffix, or a registry, a folder that
daskml_dist.serving.publish writes, served under the names of its models. SIGHUP replaces the
processes one by one, SIGTERM and Ctrl-C end them once they have answered. Clients must carry a
token where DASKML_DIST_TOKEN holds one, or --token-file names a file that does; the password of
an encrypted private key is in DASKML_DIST_KEY_PASSWORD.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

from daskml_dist.errors import InvalidParameterError

#: Environment variables that hold the token, and the password of the private key.
_TOKEN, _KEY_PASSWORD = "DASKML_DIST_TOKEN", "DASKML_DIST_KEY_PASSWORD"
#: Arguments that name a file, with their help texts.
_FILES = {
    "token-file": "file whose first line is the token",
    "certificate": "TLS certificate, a PEM file",
    "private-key": "private key of the certificate",
    "client-authorities": "certificate authorities that clients must be signed by",
}
#: Arguments that are passed to `serving.serve` only if they are given, since their defaults are
#: those of its parameters.
_PASSED = (
    "certificate", "private_key", "client_authorities", "method", "all_versions", "scheduler",
    "cluster_rows", "head_seconds", "body_seconds", "max_bytes", "max_waiting", "max_delay",
    "access_log", "compress_from", "together", "trusted",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", metavar="PATH", help="a model file, or a registry")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all")
    parser.add_argument(
        "--port", type=int, default=8000, help="port; 0: a free one, which is printed"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="server processes")
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=1.0,
        metavar="SECONDS",
        help="look for new versions every second, or every SECONDS",
    )
    _add_flag(parser, "--all-versions", "also serve old versions")
    parser.add_argument(
        "--method", help="method of the models: predict_proba, predict or transform"
    )
    for name, text in _FILES.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=text)
    parser.add_argument("--max-bytes", type=int, metavar="N", help="largest request body")
    parser.add_argument("--max-waiting", type=int, metavar="N", help="most requests that may wait")
    parser.add_argument(
        "--max-delay",
        type=float,
        metavar="SECONDS",
        help=(
            "call models in a thread, with the rows of all requests within SECONDS; 0: each "
            "request alone"
        ),
    )
    _add_flag(
        parser,
        "--together",
        "combine requests into one call: faster, but the last digits vary with the load",
    )
    for part in ("head", "body"):
        parser.add_argument(
            f"--{part}-seconds",
            type=float,
            metavar="SECONDS",
            help=f"time limit for the {part} of a request; default: 30",
        )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="address of a Dask scheduler whose workers predict large requests: tcp://...",
    )
    parser.add_argument(
        "--cluster-rows",
        type=int,
        metavar="N",
        help="number of rows from which a request is sent to the cluster",
    )
    parser.add_argument(
        "--trusted",
        action="append",
        default=None,
        metavar="CLASS",
        help="a class outside this package that model files may contain, such as "
        "sklearn.tree._tree.Tree; repeatable",
    )
    _add_flag(parser, "--access-log", "log a line for each request")
    parser.add_argument(
        "--compress-from",
        type=int,
        metavar="BYTES",
        help="compress answers larger than this for clients that accept gzip",
    )


def _add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add an argument that is True, or None if it is not given."""
    parser.add_argument(name, action="store_true", default=None, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from daskml_dist.serving import serve

    # The log goes to standard error, with the number of the process, since several write to it.
    logging.basicConfig(format="%(asctime)s %(process)d %(message)s")
    logging.getLogger("daskml_dist.serving").setLevel(logging.INFO)
    settings: dict[str, Any] = {
        name: value for name in _PASSED if (value := getattr(arguments, name)) is not None
    }
    # Returns when the server has ended.
    serve(
        arguments.path,
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        watch=False if arguments.watch is None else arguments.watch,
        token=_read_token(arguments.token_file),
        key_password=os.environ.get(_KEY_PASSWORD) if arguments.certificate else None,
        **settings,
    )
    return 0


def _read_token(file: str | None) -> str | None:
    """Return the token of a file or of the environment, or None without either.

    An argument with the token itself would be shown to all users of the machine, by `ps`.
    """
    # Only the first line, since editors end a file with a line break.
    if file is None:
        token = os.environ.get(_TOKEN)
    else:
        try:
            token = (Path(file).read_text("utf-8").splitlines() or [""])[0]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidParameterError(
                f"The token file {file} cannot be read ({error}). Name a text file that this "
                "user may read."
            ) from error
    if token is None:
        return None
    # An empty token, such as from a variable that a script failed to set, would give access to
    # everyone.
    if not token.strip():
        raise InvalidParameterError(
            f"The token is empty. Write a token into {file or _TOKEN}, or start the server "
            "without one."
        )
    return token.strip()
