"""Servers of models: a parent with the listening socket, and processes that answer requests.

`serve` checks its parameters as far as possible, binds the socket, and only then forks: an error
ends the server immediately, with a message, instead of each of its processes in turn. All processes
accept from the same socket, so the kernel gives a connection to a waiting process, and none is
refused while a process is replaced. Modules are imported before the forks, so that the processes
share their memory.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from daskml_dist.errors import InvalidParameterError, InvalidTypeError, ServingError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.parameters.checks import check_count, check_number
from daskml_dist.serving.metrics import Metrics
from daskml_dist.serving.models import Models, check_source_path
from daskml_dist.serving.server_process import App, load_uvicorn, run_server_process
from daskml_dist.serving.supervisor import ProcessSlot, Supervisor
from daskml_dist.serving.tls import Certificates

#: Modules that every process needs, imported once, before the forks.
_PRELOADED = (
    "fsspec.implementations.local",
    "skops.io",
    "uvicorn.lifespan.on",
    "daskml_dist.serving.connection",
)
#: Settings of the package's own application that `serve` passes on.
_SETTINGS = (
    "max_bytes",
    "max_waiting",
    "max_delay",
    "body_seconds",
    "together",
    "access_log",
    "compress_from",
)
_SECONDS = "of seconds > 0"
_LOG = logging.getLogger("daskml_dist.serving")


@suggest_arguments
def serve(
    source: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    watch: bool | float = False,
    token: str | None = None,
    certificate: str | None = None,
    private_key: str | None = None,
    key_password: str | None = None,
    client_authorities: str | None = None,
    method: str | None = None,
    all_versions: bool = False,
    trusted: Collection[str] = (),
    given: Mapping[str, Mapping[str, Any]] | None = None,
    keep_alive: float = 5.0,
    head_seconds: float = 30.0,
    end_within: float = 30.0,
    scheduler: str | None = None,
    cluster_rows: int | None = None,
    app: Callable[..., App] | None = None,
    **settings: Any,
) -> None:
    """Serve models over HTTP until SIGTERM or SIGINT (Ctrl-C).

    The calling process holds the listening socket and forks the processes that answer, so it must
    have no threads, as `python -m daskml_dist serve` has none. SIGHUP replaces the processes one by
    one without refusing a connection: the new ones load models and certificates again.

    Parameters
    ----------
    source : str, path-like or mapping
        A model file, a registry, or models by name (:class:`Models`).
    host : str, default="127.0.0.1"
        Address to listen at; "0.0.0.0" is all of this machine's.
    port : int, default=8000
        0: a free one, which the log names.
    workers : int, default=1
        Processes that answer.
    watch : bool or float, default=False
        Whether to look for new versions while serving, each second, or at this interval in seconds.
    token : str, optional
        Token that requests must carry (``Authorization: Bearer``).
    certificate, private_key, key_password, client_authorities : str, optional
        Files of TLS (1.2 and later) in PEM, and the password of the private key; with
        `client_authorities` only clients with a certificate from one of these are accepted. With
        `watch`, a renewed certificate and key are loaded automatically; otherwise, like
        authorities, at SIGHUP.
    method, all_versions, trusted, given
        As in :class:`Models`.
    keep_alive : float, default=5.0
        Seconds after which an idle connection is closed.
    head_seconds : float, default=30.0
        Seconds that the head of a request may take (408), and that a client may leave a response
        unread; at most half more.
    end_within : float, default=30.0
        Seconds in which a terminating process may answer its remaining requests.
    scheduler : str, optional
        Address of a Dask scheduler, whose workers predict requests with many rows: ``tcp://...``,
        or ``tls://...`` with the certificates of Dask's configuration.
    cluster_rows : int, optional
        Number of rows from which a request goes there. None: the number for which the model takes
        0.1 s in process.
    app : callable, optional
        ``app(models, metrics, **settings)``, an ASGI application of your own in place of the Open
        Inference Protocol's.
    **settings
        Parameters of the application: `max_bytes`, `max_waiting`, `max_delay`, `body_seconds`,
        `together`, `access_log`, `compress_from` (:class:`daskml_dist.serving.app.App`). An `app`
        of your own gets `token` and `cluster` too, if there is a token or a scheduler.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.
    InvalidTypeError
        There is no such parameter.
    ModelFileError
        There is no such file or folder.
    ServingError
        The address is taken, nothing can be served, the certificate cannot be used, the extra
        ``serve`` is not installed, or this process has threads.

    Examples
    --------
    >>> from daskml_dist.serving import serve
    >>> serve('models', port=8000, workers=2, watch=True)  # doctest: +SKIP
    """
    _check_parameters(
        port, workers, watch, keep_alive=keep_alive, head_seconds=head_seconds,
        end_within=end_within,
    )  # fmt: skip
    # The settings of another application are its own.
    if app is None:
        _check_settings(settings)
    certificates = _load_certificates(certificate, private_key, key_password, client_authorities)
    load_uvicorn()
    if not isinstance(source, Mapping):
        check_source_path(source)
    # Packages of extras may be missing: the part that needs one raises, with the remedy.
    for name in _PRELOADED:
        with suppress(ImportError):
            import_module(name)
    if (cluster := _make_cluster(scheduler, cluster_rows)) is not None:
        settings["cluster"] = cluster
    if token is not None:
        settings["token"] = token
    # By name, since importing it needs the extra.
    kind: Callable[..., App] = app or import_module("daskml_dist.serving.app").App
    _raise_open_files_limit()
    # Shared memory of the processes, and their socket: both are created before the forks.
    metrics = Metrics(Supervisor.n_slots(workers))
    listener = listen(host, port)

    def make_models(counted: Metrics) -> Models:
        return Models(
            source, metrics=counted, method=method, all_versions=all_versions, trusted=trusted,
            given=given,
        )  # fmt: skip

    def work(place: ProcessSlot) -> None:
        run_server_process(
            place, listener, make_models,
            lambda models, counted: kind(models, counted, **settings), metrics,
            watch=1.0 if watch is True else float(watch) or None, keep_alive=keep_alive,
            end_within=end_within, head_seconds=head_seconds, certificates=certificates,
        )  # fmt: skip

    def log_address() -> None:
        _LOG.info("Serving at %s, processes: %d", _format_url(listener, bool(certificate)), workers)

    try:
        # A terminating process first waits for idle connections, and then for running requests; it
        # is killed within a second after that. The parent's own socket is closed immediately, so
        # that new clients are refused and go elsewhere.
        longest_end = keep_alive + end_within + 1.0
        Supervisor(
            work, workers, end_within=longest_end, on_ready=log_address, on_stop=listener.close
        ).run()
    finally:
        listener.close()


def _raise_open_files_limit() -> None:
    """Raise the soft limit of open files, and so of connections, to the hard limit.

    The usual soft limit, 1024, exists for programs that use `select`; a thousand silent clients
    would be enough to exclude all others.
    """
    import resource

    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS states no hard limit, but refuses to exceed one in the kernel.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _format_url(listener: socket.socket, is_tls: bool) -> str:
    """Return the URL at which a socket listens; addresses of IPv6 are in brackets."""
    host, port = listener.getsockname()[:2]
    host_text = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_tls else ''}://{host_text}:{port}"


def _make_cluster(scheduler: str | None, cluster_rows: int | None) -> Any:
    """Return the cluster that predicts requests with many rows; None without a scheduler."""
    if scheduler is not None:
        # Imported only here: its import is slow, and servers without a cluster do not need it;
        # once, before the forks.
        import_module("distributed")
        kind = import_module("daskml_dist.serving.on_cluster").Cluster
        return kind(scheduler, min_rows=cluster_rows)
    if cluster_rows is not None:
        raise InvalidParameterError("cluster_rows needs a scheduler: give its address.")
    return None


def listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking socket that listens at an address; raise if it is in use."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            # Connections of an earlier server may still be in TIME_WAIT at this port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            # Maximum connections waiting to be accepted, as in uvicorn; the kernel caps it
            # (somaxconn).
            listener.listen(2048)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ServingError(
            f"Cannot listen on {host}:{port} ({error}). Is another server using it? Use another "
            "port, or 0 for a free one."
        ) from error
    return listener


def _check_parameters(port: int, workers: int, watch: bool | float, **seconds: float) -> None:
    """Raise if a parameter is invalid; `seconds` are times by the names of their parameters."""
    check_count("port", port, min_value=0, max_value=65535)
    check_count("workers", workers)
    if not isinstance(watch, bool | np.bool_):
        check_number("watch", watch, _is_positive, "of seconds > 0, True or False")
    if sys.platform == "win32":
        raise ServingError("The server forks, which Windows does not support. Use Linux, or WSL.")
    for name, value in seconds.items():
        check_number(name, value, _is_positive, _SECONDS)


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raise if a setting of the application is unknown or invalid.

    With a negative limit, the server would start and then refuse all requests.
    """
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise InvalidTypeError(
                f"serve(): {name!r} is not one of its parameters."
                f"{suggest_nearest(name, _SETTINGS) or f' Its settings: {list(_SETTINGS)}.'}"
            )
        if name in {"max_bytes", "max_waiting"}:
            check_count(name, value)
        elif name == "compress_from" and value is not None:
            check_count(name, value, "or None for never")
        elif name == "body_seconds":
            check_number(name, value, _is_positive, _SECONDS)
        elif name == "max_delay" and value is not None:
            for delay in value.values() if isinstance(value, Mapping) else (value,):
                check_number(name, delay, hint="of seconds >= 0, or None to use no thread")


def _is_positive(value: float) -> bool:
    """Return whether a number is greater than 0."""
    return value > 0


def _load_certificates(certificate: str | None, *credentials: str | None) -> Certificates | None:
    """Return certificates, read once so that an error in them ends the server before it starts.

    `credentials` are private key, password and client authorities.
    """
    if certificate is not None:
        certificates = Certificates(certificate, *credentials)
        certificates.context()
        return certificates
    names = ("private_key", "key_password", "client_authorities")
    for name, value in zip(names, credentials, strict=True):
        if value is not None:
            raise InvalidParameterError(f"A {name} needs a certificate: give both.")
    return None
