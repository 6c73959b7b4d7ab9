"""Servers of models: a parent with the listening socket, and processes that answer on it."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from daskml_dist.errors import InvalidParameterError, ServingError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.serving.metrics import Metrics
from daskml_dist.serving.models import Models, check_source_path
from daskml_dist.serving.server_process import App, load_uvicorn, run_server_process
from daskml_dist.serving.supervisor import ProcessSlot, Supervisor
from daskml_dist.serving.tls import Certificates

#: What every process needs, imported once, before the forks.
_LOADED_BEFORE = (
    "fsspec.implementations.local",
    "skops.io",
    "uvicorn.lifespan.on",
    "daskml_dist.serving.connection",
)
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

    The calling process holds the listening socket and forks the processes that answer, so it needs
    to be one without threads: `python -m daskml_dist serve` is. SIGHUP replaces the processes one
    by one, which refuses no connection: the new ones load models and certificates anew.

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
        Whether to look for new versions meanwhile, each second, or so many seconds.
    token : str, optional
        That requests must carry (``Authorization: Bearer``).
    certificate, private_key, key_password, client_authorities : str, optional
        Of TLS (1.2 and later): files in PEM, and the password of the key's; with
        `client_authorities` only clients with a certificate of these are let in. With `watch`, a
        renewed certificate and key are taken as they come; else, as authorities are, at SIGHUP.
    method, all_versions, trusted, given
        As of :class:`Models`.
    keep_alive : float, default=5.0
        Seconds after which an idle connection is closed.
    head_seconds : float, default=30.0
        Seconds that the head of a request may take (408), and that a client may leave an answer
        unread; half more at most.
    end_within : float, default=30.0
        Seconds that a process that is told to end has for the requests that have come.
    scheduler : str, optional
        Address of a Dask scheduler, whose workers predict what has many rows: ``tcp://...``, or
        ``tls://...`` with the certificates of Dask's configuration.
    cluster_rows : int, optional
        Rows from which a request goes there. None: as many as take the model 0.1 s in process.
    app : callable, optional
        ``app(models, metrics, **settings)``, an ASGI application of your own in place of the Open
        Inference Protocol's.
    **settings
        Of the application: `max_bytes`, `max_waiting`, `max_delay`, `body_seconds`, `together`,
        `access_log`, `compress_from` (:class:`daskml_dist.serving.app.App`); `cluster` where there
        is a scheduler.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.
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
    _check_parameters(port, workers, watch)
    _check_seconds(keep_alive=keep_alive, head_seconds=head_seconds, end_within=end_within)
    if (least := settings.get("compress_from")) is not None and least < 1:
        raise InvalidParameterError(
            f"compress_from={least}: use a number of bytes >= 1, or None for never."
        )
    certificates = _load_certificates(certificate, private_key, key_password, client_authorities)
    load_uvicorn()
    if not isinstance(source, Mapping):
        check_source_path(source)  # what is not there is told at once
    for name in _LOADED_BEFORE:
        with suppress(ImportError):  # whoever needs it says so
            import_module(name)
    if (cluster := _make_cluster(scheduler, cluster_rows)) is not None:
        settings["cluster"] = cluster
    if token is not None:
        settings["token"] = token
    kind = app or _load_application()
    raise_open_files_limit()
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

    def say_so() -> None:
        _LOG.info("Serving at %s, processes: %d", _format_url(listener, bool(certificate)), workers)

    try:
        # Idle connections are waited for first, and then the requests under way.
        most = keep_alive + end_within + 1.0
        Supervisor(work, workers, end_within=most, on_ready=say_so, on_stop=listener.close).run()
    finally:
        listener.close()


def raise_open_files_limit() -> None:
    """Raise the limit of open files, and so of connections, as far as the system lets it.

    The usual bound, 1024, is kept low for programs that wait by `select`, and a thousand clients
    that say nothing would be enough to keep out all others.
    """
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS calls it endless, and has an end
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _format_url(listener: socket.socket, is_tls: bool) -> str:
    host, port = listener.getsockname()[:2]
    where = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_tls else ''}://{where}:{port}"


def _make_cluster(scheduler: str | None, cluster_rows: int | None) -> Any:
    """Return the cluster that predicts many rows; None without a scheduler."""
    if scheduler is not None:
        import_module("distributed")  # once, before the forks, and by nobody else
        kind = import_module("daskml_dist.serving.on_cluster").Cluster
        return kind(scheduler, min_rows=cluster_rows)
    if cluster_rows is not None:
        raise InvalidParameterError("cluster_rows needs a scheduler: name its address.")
    return None


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ServingError(
            f"Cannot listen at {host}:{port} ({error}). Is another server there? Name another "
            "port, or 0 for a free one."
        ) from error
    return listener


def _check_parameters(port: int, workers: int, watch: bool | float) -> None:
    if not 0 <= port < 65536:
        raise InvalidParameterError(f"port={port}: use an integer from 0 to 65535.")
    if workers < 1:
        raise InvalidParameterError(f"workers={workers}: use an integer >= 1.")
    if watch is not False and not 0 < watch < float("inf"):
        raise InvalidParameterError(f"watch={watch}: use True, False, or seconds > 0.")
    if sys.platform == "win32":
        raise ServingError("A server forks, which Windows does not. Use Linux, or WSL.")


def _check_seconds(**given: float) -> None:
    for name, seconds in given.items():
        if not 0 < seconds < float("inf"):
            raise InvalidParameterError(f"{name}={seconds}: use seconds > 0.")


def _load_certificates(certificate: str | None, *more: str | None) -> Certificates | None:
    """Return certificates, read once so that a mistake in them ends the server before it starts."""
    if certificate is not None:
        made = Certificates(certificate, *more)
        made.context()
        return made
    names = ("private_key", "key_password", "client_authorities")
    for name, value in zip(names, more, strict=True):
        if value is not None:
            raise InvalidParameterError(f"A {name} needs the certificate: name both.")
    return None


def _load_application() -> Callable[..., App]:
    """Return the application of the Open Inference Protocol; it needs the extra."""
    kind: Callable[..., App] = import_module("daskml_dist.serving.app").App
    return kind
