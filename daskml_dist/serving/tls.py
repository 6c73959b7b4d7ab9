"""TLS of a server: its certificate and key, checked before it starts, renewed while it runs.

OpenSSL's errors name neither the file nor the remedy, so files are checked before OpenSSL reads
them. An active context uses a renewed pair for new connections; open ones keep the old pair.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

from daskml_dist.errors import ServingError
from daskml_dist.serving.models import read_file_state

_LOG = logging.getLogger("daskml_dist.serving")
#: Remedy for an encrypted key: the parameter of `serve`, or the command's variable.
_PASSWORD = (
    "pass its password as key_password, or in the environment variable DASKML_DIST_KEY_PASSWORD"
)


class Certificates:
    """Certificate of a server, and the authorities of its clients; TLS 1.2 and later.

    Parameters
    ----------
    certificate : str
        File in PEM, with the intermediate certificates up to its authority.
    private_key : str, optional
        File in PEM; None: it is in the certificate's file.
    password : str, optional
        Password of an encrypted key.
    client_authorities : str, optional
        File in PEM; only clients with a certificate of one of these authorities are let in.
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
        # States of the files in use, and of the last ones that could not be used.
        self._state: Any = None
        self._refused: Any = None

    def context(self) -> ssl.SSLContext:
        """Return a TLS context with the current files; raise if they cannot be used."""
        # The state first: files that change while they are read are then read again.
        self._state = self._read_state()
        context = self._make_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._authorities is not None:
            _read_file(Path(self._authorities), "client authorities", b"CERTIFICATE")
            try:
                context.load_verify_locations(self._authorities)
            except ssl.SSLError as error:
                raise ServingError(
                    f"The client authorities {self._authorities} cannot be used ({error}). Name a "
                    "file of certificates in PEM."
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def renew(self, context: ssl.SSLContext) -> None:
        """Load renewed files into an active context, for new connections.

        Files that are no pair, as when one of them is not yet renewed, change nothing.
        """
        state = self._read_state()
        if state in (self._state, self._refused):
            return
        try:
            # Tried in a new context: an active one would be broken if it accepted only half of a
            # pair.
            self._make_context()
            context.load_cert_chain(self._certificate, self._key, self._get_password)
        except (ServingError, OSError) as error:
            self._refused = state
            _LOG.error("The certificate was not renewed (%s); keeping the previous one", error)
            return
        self._state = state
        _LOG.info("The certificate %s was renewed", self._certificate)

    def _read_state(self) -> Any:
        """Return the states of certificate and key, which change when a file is replaced."""
        return read_file_state(self._certificate), read_file_state(self._key)

    def _get_password(self) -> str:
        """Return the password; without a function, OpenSSL would prompt for it on the terminal."""
        return self._password or ""

    def _make_context(self) -> ssl.SSLContext:
        """Return a context with certificate and key; raise with the reason if they are invalid."""
        certificate, key = self._certificate, self._key
        _read_file(certificate, "certificate", b"CERTIFICATE")
        _read_file(key, "private key", b"PRIVATE KEY")
        # Checked one by one first, so that an error names the file.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key, self._get_password)
        except ssl.SSLError as error:
            # In this order: a pair that does not match, a missing or wrong password, other damage.
            if "MISMATCH" in (error.reason or ""):
                problem = f"does not belong to the certificate {certificate}. Name a matching pair"
            elif b"ENCRYPTED" in key.read_bytes():
                problem = f"cannot be decrypted ({error}): {_PASSWORD}"
            else:
                problem = (
                    f"or the certificate {certificate} is damaged ({error}). Name files in PEM"
                )
            raise ServingError(f"The private key {key} {problem}.") from error
        return context


def _read_file(path: Path, description: str, label: bytes) -> None:
    """Raise unless a file (`description` in errors) has a PEM block whose label ends so."""
    # "PRIVATE KEY" is also the end of "RSA PRIVATE KEY" and "ENCRYPTED PRIVATE KEY".
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ServingError(
            f"The {description} {path} cannot be read ({error.strerror}). Name a file in PEM that "
            "this user may read."
        ) from error
    if b"-----BEGIN" not in content or label + b"-----" not in content:
        raise ServingError(
            f"The {description} {path} holds no {label.decode().lower()}. Name a file in PEM "
            f"(-----BEGIN ... {label.decode()}-----)."
        )
