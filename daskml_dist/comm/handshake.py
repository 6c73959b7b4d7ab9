"""Handshake: both ends of a socket prove that they belong to one run, before all else.

The caller says in what part it calls, and a nonce. The listener answers with a nonce and its proof,
without which the caller says nothing more; the caller's proof comes with its first words. Proofs
are HMAC-SHA256 under the key of this one connection, which is made of the run's secret and of all
that both must agree on: the caller's role and name (a trainer's is its rank), the listener's
`Endpoint` and both nonces. What was said on another connection, to another listener or in another
part is therefore worth nothing, and each proof says whose it is, so that none can be sent back.

The endpoint is the one that the run *announced*, not what a socket says of itself: a listener that
is bound to all addresses, or reached by another name, is still the same one. Its key names the run
and, of a trainer, the rank and the generation.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time

from daskml_dist.comm.base import Endpoint

#: What a caller opens a socket for: to send to a server, to receive from it, to send to a trainer.
UP, DOWN, PEER = b"U", b"D", b"P"
#: Bytes of a caller's name.
NAME_BYTES = 16
#: Bytes of a nonce, as random as the secret, and of a proof, an HMAC-SHA256 digest.
_NONCE_BYTES, _PROOF_BYTES = 32, 32
#: First bytes of a hello: a program of another version, or a stranger, is refused by them.
_PROTOCOL = b"daskml 2"
# protocol, role, name, nonce
_HELLO = struct.Struct(f"<8sc{NAME_BYTES}s{_NONCE_BYTES}s")


class RunSecret(bytes):
    """Secret that only the workers of a run know; no log shows it."""

    @classmethod
    def make(cls) -> RunSecret:
        """Return a new secret of 32 random bytes."""
        return cls(secrets.token_bytes(32))

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__  # bytes have one of their own


class HandshakeDeadline:
    """The end of a whole handshake, however many reads and writes it is made of.

    Parameters
    ----------
    seconds : float
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def limit_next_call(self, sock: socket.socket) -> None:
        """Let the next call of a socket take no longer than what is left."""
        # One deadline for all reads: a caller that sends a byte now and then gains no time.
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the handshake took too long")
        sock.settimeout(left)

    def receive(self, sock: socket.socket, n: int) -> bytes:
        """Read exactly `n` bytes."""
        data = b""
        while len(data) < n:
            self.limit_next_call(sock)
            part = sock.recv(n - len(data))
            if not part:
                raise ConnectionError("end of file in the handshake")
            data += part
        return data

    def send(self, sock: socket.socket, data: bytes) -> None:
        """Write all of `data`."""
        self.limit_next_call(sock)
        sock.sendall(data)


class HandshakeSession:
    """Words that both sides may say once, with the proof of who says them.

    Parameters
    ----------
    sock : socket
    deadline : HandshakeDeadline
    key : bytes
        Of this connection alone.
    """

    def __init__(self, sock: socket.socket, deadline: HandshakeDeadline, key: bytes) -> None:
        self._sock, self._deadline, self._key = sock, deadline, key

    def send_words(self, speaker: bytes, words: bytes = b"") -> None:
        """Send words with their proof; `speaker` names the side and the turn."""
        self._deadline.send(self._sock, words + self._proof(speaker, words))

    def receive_words(self, speaker: bytes, n: int = 0) -> bytes:
        """Return `n` bytes of words, whose proof was right."""
        data = self._deadline.receive(self._sock, n + _PROOF_BYTES)
        words = data[:n]
        # In constant time, so that how long it takes tells nothing of the proof.
        if not hmac.compare_digest(data[n:], self._proof(speaker, words)):
            raise ConnectionError("the other side does not know this run's secret")
        return words

    def _proof(self, speaker: bytes, words: bytes) -> bytes:
        """Return the HMAC-SHA256 of words, under the key of the connection."""
        return hmac.digest(self._key, speaker + b"\0" + words, "sha256")


def send_hello(sock: socket.socket, deadline: HandshakeDeadline, role: bytes, name: bytes) -> bytes:
    """Send what the caller calls for; return the words, of which proofs are made."""
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
    """Go on as a caller that has knocked; the listener has proved itself when this returns.

    The next words are the caller's.
    """
    nonce = deadline.receive(sock, _NONCE_BYTES)
    session = HandshakeSession(sock, deadline, _derive_key(secret, hello, nonce, listener))
    session.receive_words(b"listener")
    return session


def receive_hello(
    sock: socket.socket, deadline: HandshakeDeadline, secret: bytes, listener: Endpoint
) -> tuple[bytes, bytes, HandshakeSession]:
    """Begin the handshake as the listener: role and name that the caller claims, and the session.

    The next words are the caller's, with its proof.
    """
    hello = deadline.receive(sock, _HELLO.size)
    # The caller's nonce is part of `hello`, of which the key is made.
    protocol, role, name, _ = _HELLO.unpack(hello)
    if protocol != _PROTOCOL or role not in (UP, DOWN, PEER):
        raise ConnectionError("the caller is not a process of this package")
    # A fresh nonce makes the key of this connection alone, so that nothing said before proves
    # anything.
    nonce = secrets.token_bytes(_NONCE_BYTES)
    session = HandshakeSession(sock, deadline, _derive_key(secret, hello, nonce, listener))
    deadline.send(sock, nonce)
    # The listener proves itself first: a caller tells a stranger nothing that needs the secret.
    session.send_words(b"listener")
    return role, name, session


def _derive_key(secret: bytes, hello: bytes, nonce: bytes, listener: Endpoint) -> bytes:
    """Return the key of one connection, made of all that both sides must agree on."""
    if not secret:
        raise ConnectionError("this process has no secret for a run")
    place = f"{listener.host}\0{listener.port}\0{listener.key}".encode()
    # All but the last part have one length each, and a host has no NUL.
    return hmac.digest(secret, b"connection\0" + hello + nonce + place, "sha256")
