"""Limits of what clients may send, and what lets them in."""

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode

# The names under which this machine alone reaches itself.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Limits:
    """The limits of a request: bytes of its body, and seconds until the whole body is there.

    token: what clients must send as ``Authorization: Bearer TOKEN``; "" for none.
    """

    request_bytes: int = 64 << 20
    read_seconds: float = 10.0
    token: str = ""

    def require_size(self, size: int) -> None:
        """Raise PycError (REQUEST_TOO_LARGE) for a body of more bytes."""
        if size > self.request_bytes:
            raise PycError(
                ReasonCode.REQUEST_TOO_LARGE,
                where="request",
                expected=f"at most {self.request_bytes} bytes",
                got=str(size),
                remedy="send less at once, or start the server with a larger --max-request-bytes",
            )

    def require_access(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise PycError (UNAUTHORIZED) unless the headers hold the token.

        Without one, the request must be meant for this machine (`Host`: a foreign name may be made
        to lead here, by DNS rebinding) and come from no other site's page (`Origin`).
        """
        if self.token:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                raise PycError(
                    ReasonCode.UNAUTHORIZED,
                    where="authorization",
                    expected="the server's token as `Authorization: Bearer TOKEN`",
                    got="another one" if given else "none",
                )
            return
        host = headers.get(b"host", b"localhost").decode("latin-1").lower()
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if re.sub(r":\d*$", "", host).strip("[]") not in LOOPBACK:
            _refuse("host", " or ".join(LOOPBACK), host)
        if origin and origin.partition("://")[2] != host:
            _refuse("origin", f"none, or the server's own page at {host}", origin)


def _refuse(where: str, expected: str, got: str) -> None:
    remedy = "ask for it as localhost, by no page of another site, or start the server with a token"
    text = f"expected {expected}, got {got[:80] or 'none'}; {remedy}"
    raise PycError(ReasonCode.UNAUTHORIZED, text, where=where)
