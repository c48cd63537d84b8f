"""Limits of what clients may send, and the token that they must."""

import hmac
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode


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

    def require_token(self, authorization: bytes) -> None:
        """Raise PycError (UNAUTHORIZED) unless the header holds the token, if there is one."""
        if self.token and not hmac.compare_digest(authorization, f"Bearer {self.token}".encode()):
            raise PycError(
                ReasonCode.UNAUTHORIZED,
                where="authorization",
                expected="the server's token as `Authorization: Bearer TOKEN`",
                got="another one" if authorization else "none",
            )
