"""Handshake: both ends of a socket prove that they belong to one run, before any other data.

The caller sends the role in which it calls, and a nonce. The listener answers with a nonce and its
proof; without that proof the caller sends nothing more. The caller's proof comes with its first
message. Proofs are HMAC-SHA256 under a key of this one connection, derived from the run's secret
and from everything that both sides must agree on: the caller's role and name (a trainer's name is
its rank), the listener's `Endpoint` and both nonces. Data recorded from another connection, to
another listener or in another role is therefore useless, and each proof names the side that made
it, so it cannot be reflected.

The endpoint is the one that the run *announced*, not the address of a socket: a listener that is
bound to all addresses, or reached by another name, has the same endpoint. Its key names the run
and, for a trainer, the rank and the generation.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time

from daskml_dist.comm.base import Endpoint

#: Roles of a caller: to send to a server, to receive from a server, to send to a trainer.
UP, DOWN, PEER = b"U", b"D", b"P"
#: Bytes of a caller's name.
NAME_BYTES = 16
#: Bytes of a nonce, as random as the secret, and of a proof, an HMAC-SHA256 digest.
_NONCE_BYTES, _PROOF_BYTES = 32, 32
#: First bytes of a hello, which reject programs of other versions and other protocols.
_PROTOCOL = b"daskml 2"
# protocol, role, name, nonce
_HELLO = struct.Struct(f"<8sc{NAME_BYTES}s{_NONCE_BYTES}s")


class RunSecret(bytes):
    """Secret that only the workers of a run know; it is never shown in logs."""

    @classmethod
    def generate(cls) -> RunSecret:
        """Return a new secret of 32 random bytes."""
        return cls(secrets.token_bytes(32))

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__  # bytes defines its own


class HandshakeDeadline:
    """Time limit of a whole handshake, over all of its reads and writes.

    Parameters
    ----------
    seconds : float
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def limit_next_call(self, sock: socket.socket) -> None:
        """Limit the next call on a socket to the remaining time."""
        # One deadline for all reads: a caller that sends single bytes slowly gains no time.
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the handshake took too long")
        sock.settimeout(remaining)

    def receive(self, sock: socket.socket, n: int) -> bytes:
        """Read exactly `n` bytes."""
        data = b""
        while len(data) < n:
            self.limit_next_call(sock)
            chunk = sock.recv(n - len(data))
            if not chunk:
                raise ConnectionError("end of file in the handshake")
            data += chunk
        return data

    def send(self, sock: socket.socket, data: bytes) -> None:
        """Write all of `data`."""
        self.limit_next_call(sock)
        sock.sendall(data)


class HandshakeSession:
    """Authenticated exchange of single messages, each with a proof of its sender.

    Parameters
    ----------
    sock : socket
    deadline : HandshakeDeadline
    key : bytes
        Key of this connection alone.
    """

    def __init__(self, sock: socket.socket, deadline: HandshakeDeadline, key: bytes) -> None:
        self._sock, self._deadline, self._key = sock, deadline, key

    def send_words(self, label: bytes, message: bytes = b"") -> None:
        """Send a message with its proof; `label` identifies the side and the step."""
        self._deadline.send(self._sock, message + self._proof(label, message))

    def receive_words(self, label: bytes, n: int = 0) -> bytes:
        """Return a message of `n` bytes after verifying its proof."""
        data = self._deadline.receive(self._sock, n + _PROOF_BYTES)
        message = data[:n]
        # In constant time, so that the duration reveals nothing about the proof.
        if not hmac.compare_digest(data[n:], self._proof(label, message)):
            raise ConnectionError("the other side does not know this run's secret")
        return message

    def _proof(self, label: bytes, message: bytes) -> bytes:
        """Return the HMAC-SHA256 of a message, under the key of the connection."""
        return hmac.digest(self._key, label + b"\0" + message, "sha256")


def send_hello(sock: socket.socket, deadline: HandshakeDeadline, role: bytes, name: bytes) -> bytes:
    """Send the caller's hello; return its bytes, from which the key is derived."""
    hello = _HELLO.pack(_PROTOCOL, role, name, secrets.token_bytes(_NONCE_BYTES))
    deadline.send(sock, hello)
    return hello


def verify_listener(
    sock: socket.socket,
    deadline: HandshakeDeadline,
    secret: bytes,
    listener: Endpoint,
    hello: bytes,
) -> HandshakeSession:
    """Continue the handshake as the caller; on return, the listener has proved itself.

    The caller sends the next message.
    """
    nonce = deadline.receive(sock, _NONCE_BYTES)
    session = HandshakeSession(sock, deadline, _derive_key(secret, hello, nonce, listener))
    session.receive_words(b"listener")
    return session


def receive_hello(
    sock: socket.socket, deadline: HandshakeDeadline, secret: bytes, listener: Endpoint
) -> tuple[bytes, bytes, HandshakeSession]:
    """Begin the handshake as the listener; return the claimed role and name, and the session.

    The caller sends the next message, with its proof.
    """
    hello = deadline.receive(sock, _HELLO.size)
    # The caller's nonce is part of `hello`, from which the key is derived.
    protocol, role, name, _ = _HELLO.unpack(hello)
    if protocol != _PROTOCOL or role not in (UP, DOWN, PEER):
        raise ConnectionError("the caller is not a process of this package")
    # A fresh nonce makes the key unique to this connection, so that no recorded data is a valid
    # proof.
    nonce = secrets.token_bytes(_NONCE_BYTES)
    session = HandshakeSession(sock, deadline, _derive_key(secret, hello, nonce, listener))
    deadline.send(sock, nonce)
    # The listener proves itself first, so that a caller reveals nothing based on the secret to
    # strangers.
    session.send_words(b"listener")
    return role, name, session


def _derive_key(secret: bytes, hello: bytes, nonce: bytes, listener: Endpoint) -> bytes:
    """Return the key of one connection, derived from everything that both sides must agree on."""
    if not secret:
        raise ConnectionError("this process has no secret for a run")
    address = f"{listener.host}\0{listener.port}\0{listener.key}".encode()
    # All parts but the last have a fixed length, and a host name contains no NUL.
    return hmac.digest(secret, b"connection\0" + hello + nonce + address, "sha256")
