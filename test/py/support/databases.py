"""Databases for tests: SQLite files, and a PostgreSQL server that starts without root."""

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOBODY = "nobody"


def postgres_programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`, the newest version's; None without a server."""
    found = sorted(
        glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=lambda p: float(p.split("/")[4])
    )
    if found:
        return Path(found[-1]).parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


@contextmanager
def postgres_server() -> Iterator[str]:
    """A server of its own in a temporary folder; gives its URL. Skips where none is installed."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pyc-pg-", dir="/tmp"))
    if os.getuid() == 0:
        nobody = pwd.getpwnam(_NOBODY)
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    folder.chmod(0o700)

    def run(program: str, *arguments: str) -> None:
        # The server refuses to run as root.
        user = _NOBODY if os.getuid() == 0 else None
        environment = {"HOME": str(folder), "LC_ALL": "C", "PATH": "/usr/bin:/bin"}
        command = [str(programs / program), *arguments]
        subprocess.run(
            command,
            check=True,
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    data, log = str(folder / "data"), str(folder / "log")
    try:
        run("initdb", "-D", data, "-U", "pyc", "--auth=trust", "--no-sync", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses= -c max_connections=60"
        run("pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "start")
        try:
            run("createdb", "-h", str(folder), "-U", "pyc", "pyc")
            yield f"postgresql+psycopg://pyc@/pyc?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
