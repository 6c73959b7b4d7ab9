"""TLS of a server: its certificate and key, checked before it starts, renewed while it runs."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from daskml_dist.errors import ServingError
from daskml_dist.serving.models import read_file_state

_LOG = logging.getLogger("daskml_dist.serving")
_PASSWORD = "its password is key_password, or DASKML_DIST_KEY_PASSWORD in the environment"


class Certificates:
    """Certificate of a server, and whose clients it lets in; TLS 1.2 and later.

    Parameters
    ----------
    certificate : str
        File in PEM, with those between it and its authority.
    private_key : str, optional
        File in PEM; None: it is in that of the certificate.
    password : str, optional
        Of the key.
    client_authorities : str, optional
        File in PEM; only clients with a certificate of these are let in.
    """

    def __init__(
        self,
        certificate: str,
        private_key: str | None = None,
        password: str | None = None,
        client_authorities: str | None = None,
    ) -> None:
        self._certificate, self._key = Path(certificate), Path(private_key or certificate)
        self._password, self._authorities = password, client_authorities
        self._state: Any = None
        self._refused: Any = None

    def context(self) -> ssl.SSLContext:
        """Return the context of TLS of the files as they are now."""
        self._state = self._look()
        made = self._made()
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._authorities is not None:
            _read_file(Path(self._authorities), "client authorities", b"CERTIFICATE")
            try:
                made.load_verify_locations(self._authorities)
            except ssl.SSLError as error:
                raise ServingError(
                    f"The client authorities {self._authorities} cannot be used ({error}). Name a "
                    "file of certificates in PEM."
                ) from error
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    def renew(self, context: ssl.SSLContext) -> None:
        """Take renewed files into a context that is in use, for connections to come.

        Files that are no pair, such as while one of them is still to be renewed, change nothing.
        """
        state = self._look()
        if state in (self._state, self._refused):
            return
        try:
            self._made()  # a context that has taken half of a pair could not be used any more
            context.load_cert_chain(self._certificate, self._key, self._told)
        except (ServingError, OSError) as error:
            self._refused = state
            _LOG.error("The certificate is not renewed (%s); the one before is used on", error)
            return
        self._state = state
        _LOG.info("The certificate %s is renewed", self._certificate)

    def _look(self) -> Any:
        return read_file_state(self._certificate), read_file_state(self._key)

    def _told(self) -> str:
        """Return the password; without one OpenSSL would ask for it on the terminal."""
        return self._password or ""

    def _made(self) -> ssl.SSLContext:
        certificate, key = self._certificate, self._key
        _read_file(certificate, "certificate", b"CERTIFICATE")
        _read_file(key, "private key", b"PRIVATE KEY")
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            made.load_cert_chain(certificate, key, self._told)
        except ssl.SSLError as error:
            if "MISMATCH" in (error.reason or ""):
                why = f"is not that of the certificate {certificate}. Name the two of one pair"
            elif b"ENCRYPTED" in key.read_bytes():
                why = f"cannot be decrypted ({error}): {_PASSWORD}"
            else:
                why = f"or the certificate {certificate} is damaged ({error}). Name files in PEM"
            raise ServingError(f"The private key {key} {why}.") from error
        return made


def _read_file(path: Path, what: str, begins: bytes) -> None:
    """Check that a file holds what it is named for."""
    try:
        held = path.read_bytes()
    except OSError as error:
        raise ServingError(
            f"The {what} {path} cannot be read ({error.strerror}). Name a file in PEM that this "
            "user may read."
        ) from error
    if b"-----BEGIN" not in held or begins + b"-----" not in held:
        raise ServingError(
            f"The {what} {path} holds no {begins.decode().lower()}. Name a file in PEM "
            f"(-----BEGIN ... {begins.decode()}-----)."
        )
