"""Who may send requests."""

import pytest

from pyc_mlir import PycError, ReasonCode
from pyc_mlir.serve.limits import Limits


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"host": b"localhost:8000"},
        {b"host": b"LOCALHOST"},
        {b"host": b"127.0.0.1:1"},
        {b"host": b"[::1]:8000"},
        {b"host": b"localhost:8000", b"origin": b"http://localhost:8000"},
    ],
)
def test_a_server_without_a_token_answers_this_machine(headers):
    assert Limits().require_access(headers) is None


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({b"host": b"attacker.example:8000"}, "host: expected 127.0.0.1 or ::1 or localhost"),
        ({b"host": b"127.0.0.1.attacker.example"}, "start the server with a token"),
        ({b"host": b""}, "host: expected"),
        ({b"host": b"\xff" * 1000}, "host: expected"),
        ({b"host": b"localhost:8000", b"origin": b"http://localhost:3000"}, "origin: expected"),
        ({b"host": b"localhost", b"origin": b"https://attacker.example"}, "origin: expected"),
        ({b"host": b"localhost", b"origin": b"null"}, "origin: expected"),
    ],
)
def test_and_no_foreign_name_or_page(headers, message):
    """A page of another site reaches this machine by a name that it chose, or by a form."""
    with pytest.raises(PycError) as error:
        Limits().require_access(headers)
    assert message in error.value.message and len(error.value.message) < 400
    assert error.value.code is ReasonCode.UNAUTHORIZED


def test_a_token_lets_any_name_in():
    limits = Limits(token="secret")
    limits.require_access({b"authorization": b"Bearer secret", b"host": b"models.example"})
    for given in (b"", b"secret", b"Bearer guess", b"\xff"):
        with pytest.raises(PycError, match="authorization: expected the server's token"):
            limits.require_access({b"authorization": given, b"host": b"localhost"})
