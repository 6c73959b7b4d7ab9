"""TLS: accepted clients, renewed certificates, and configuration errors before the start."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from daskml_dist.errors import InvalidParameterError, ServingError
from daskml_dist.serving import publish, serve
from daskml_dist.serving.tls import Certificates
from tests.serving.stand_ins import tensor
from tests.serving.tiny import server, until

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("uvloop", reason="needs the extra serve")
pytest.importorskip("msgspec", reason="needs the extra serve")
pytest.importorskip("cryptography", reason="certificates are made with it")
from tests.serving.certificates import pair

X = np.random.default_rng(0).normal(size=(60, 4))


def connected(port: int, authority: str) -> http.client.HTTPSConnection:
    """Connect over TLS to a server with a known certificate."""
    trusted = ssl.create_default_context(cafile=authority)
    found = http.client.HTTPSConnection("127.0.0.1", port, context=trusted, timeout=60)
    found.connect()
    return found


def send_request(
    one: http.client.HTTPSConnection, *request: Any, **headers: str
) -> tuple[int, bytes]:
    one.request(*request, headers=headers)
    reply = one.getresponse()
    return reply.status, reply.read()


def test_a_server_with_a_certificate_serves_over_tls(tmp_path: Path) -> None:
    """Replies, metrics and the token work as over plain HTTP, which is refused."""
    model = LogisticRegression().fit(X, X[:, 0] > 0)
    publish(model, tmp_path / "models", "m")
    certificate, key = pair(tmp_path, "first")
    options = {"certificate": certificate, "private_key": key, "token": "secret"}
    options["keep_alive"] = 60.0  # an idle connection must not be closed on a slow machine
    with server(tmp_path, tmp_path / "models", app=None, watch=0.02, **options) as found:
        found.ready(1)
        assert f"Serving at https://127.0.0.1:{found.port}" in found.log
        connection, token = connected(found.port, certificate), {"Authorization": "Bearer secret"}
        body = json.dumps({"inputs": [tensor(X)]})
        for number in range(2):
            status, reply = send_request(connection, "POST", "/v2/models/m/infer", body, **token)
            assert status == 200
            served = json.loads(reply)["outputs"][0]["data"]
            np.testing.assert_array_equal(np.reshape(served, (-1, 2)), model.predict_proba(X))
            if number == 0:  # a client without TLS in between
                with socket.create_connection(("127.0.0.1", found.port), timeout=60) as plain:
                    plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
                    received = b""
                    with suppress(ConnectionResetError):
                        received = plain.recv(4096)
                    assert not received.startswith(b"HTTP")
        status, reply = send_request(connection, "GET", "/metrics", **token)
        assert status == 200
        assert b'daskml_dist_requests_total{model="m",version="1",code="200"} 2' in reply
        assert send_request(connection, "GET", "/metrics")[0] == 401
        # A renewed certificate is used for new connections without a restart.
        renewed, new_key = pair(tmp_path, "second")
        shutil.copy(new_key, key)  # for a while key and certificate do not match
        shutil.copy(renewed, certificate)

        def is_new() -> bool:
            with suppress(ssl.SSLCertVerificationError):
                connected(found.port, renewed).close()
                return True
            return False

        until(is_new)
        assert send_request(connection, "GET", "/v2/health/ready")[0] == 200
        # A damaged certificate is used neither by running nor by replacement processes.
        Path(key).write_text("nothing")
        found.tell(signal.SIGHUP)
        until(lambda: "the other processes continue" in found.log)
        assert "holds no private key" in found.log
        assert send_request(connection, "GET", "/v2/health/ready")[0] == 200
        connection.close()
        connected(found.port, renewed).close()


def shaken(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> None:
    """Make a handshake in memory and send the first byte of the client."""
    incoming, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server_side.wrap_bio(incoming, back, server_side=True)
    theirs = client_side.wrap_bio(back, incoming, server_hostname="localhost")
    for one in (theirs, ours, theirs, ours):
        with suppress(ssl.SSLWantReadError):
            one.do_handshake()
    theirs.write(b"x")
    assert ours.read(1) == b"x"


def test_client_certificates_are_checked(tmp_path: Path) -> None:
    certificate, key = pair(tmp_path, "server", password="word")
    authority, its_key = pair(tmp_path, "client")
    context = Certificates(certificate, key, "word", authority).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    client = ssl.create_default_context(cafile=certificate)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shaken(context, client)
    client.load_cert_chain(authority, its_key)
    shaken(context, client)
    stranger = ssl.create_default_context(cafile=certificate)
    stranger.load_cert_chain(*pair(tmp_path, "stranger"))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shaken(context, stranger)


def test_unusable_certificate_files_are_refused(tmp_path: Path) -> None:
    """The error comes before the server listens and names the remedy; no password is prompted."""
    certificate, key = pair(tmp_path, "one")
    _, other = pair(tmp_path, "other")
    _, locked = pair(tmp_path, "locked", password="word")
    junk = tmp_path / "junk"
    junk.write_bytes(os.urandom(100))
    damaged = tmp_path / "damaged"
    text = Path(key).read_text().splitlines()
    damaged.write_text("\n".join([text[0], text[1][::-1], *text[2:]]))
    missing = str(tmp_path / "none")
    for paths, words in [
        ((missing, key), f"certificate {missing} cannot be read .No such file"),
        ((certificate, missing), f"private key {missing} cannot be read"),
        ((str(tmp_path), key), "Is a directory"),
        ((certificate, str(junk)), "holds no private key. Name a file in PEM"),
        ((certificate, certificate), "holds no private key"),
        ((certificate, None), "holds no private key"),
        ((key, key), "holds no certificate"),
        ((certificate, other), f"{other} does not belong to the certificate {certificate}. Name"),
        ((certificate, locked), "cannot be decrypted .*its password as key_password"),
        ((certificate, locked, "wrong"), "cannot be decrypted"),
        ((certificate, str(damaged)), "is damaged"),
        ((certificate, key, None, str(junk)), "holds no certificate"),
    ]:
        names = ("certificate", "private_key", "key_password", "client_authorities")
        with pytest.raises(ServingError, match=words):
            serve("models", app=dict, **dict(zip(names, paths, strict=False)))
    for name in ("private_key", "key_password", "client_authorities"):
        with pytest.raises(InvalidParameterError, match=f"A {name} needs a certificate"):
            serve("models", **{name: key})
