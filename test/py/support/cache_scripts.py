"""What test_cache_store.py does to a store in processes of its own.

    python cache_scripts.py NAME FOLDER [NUMBER ...]

Prints one JSON object.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

from pyc_mlir.cache import store as stores
from pyc_mlir.cache.store import ARTIFACT, CacheStore, sha256, sweep

NOBODY = 65534


def entry(number: int) -> tuple[str, bytes, bytes]:
    """The name, the key and the data of an entry; the data follows from the number."""
    key = json.dumps({"schema": 1, "number": number}).encode()
    return sha256(key), key, random.Random(number).randbytes(200_000)


def state(store: CacheStore) -> dict:
    """What must be empty when nobody works in a store any more."""
    sweep(store.root / "making")
    left = [p.name for p in (store.root / "making").iterdir()]
    damaged = [e.name for e in store.entries() if store.check(e.name)]
    return {"making": left, "damaged": damaged}


def full_disk(store: CacheStore) -> dict:
    name, key, data = entry(0)
    sys.dont_write_bytecode = True  # Python would keep a file that was cut off
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    (event,) = store.write(name, key, data)
    making = [p.name for p in (store.root / "making").iterdir()]
    entries = len(store.entries())
    return {"code": event.code.name, "why": event.why, "making": making, "entries": entries}


def read_only(store: CacheStore) -> dict:
    """A folder that this user may read and not write."""
    (name, key, data), (other, other_key, other_data) = entry(0), entry(1)
    store.write(name, key, data)
    store.write(other, other_key, other_data)
    (store.path(other) / ARTIFACT).write_bytes(b"damaged")
    # Whoever may read the whole folder by its descriptor need not pass the folders above it.
    os.chdir(store.folder)
    for path in (store.folder, *store.folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    here = CacheStore(Path("."))
    (event,) = here.write(*entry(2))
    found = here.read(other, other_key)
    assert found.event is not None
    code = found.event.code.name
    return {
        "read": here.read(name, key).data == data, "write": event.code.name, "damaged": code
    }  # fmt: skip


def race(store: CacheStore, processes: int, rounds: int) -> dict:
    """Every process writes, reads and damages the same few entries."""
    pipes = []
    for number in range(processes):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps(_racer(store, number, rounds)).encode())
            os._exit(0)
        os.close(writer)
        pipes.append(reader)
    reported = [json.loads(os.read(reader, 1 << 20)) for reader in pipes]
    for _ in pipes:
        os.wait()
    events = sorted({code for one in reported for code in one["events"]})
    return {"wrong": sum(one["wrong"] for one in reported), "events": events, **state(store)}


def _racer(store: CacheStore, number: int, rounds: int) -> dict:
    draw, wrong, events = random.Random(number), 0, []
    for _ in range(rounds):
        name, key, data = entry(draw.randrange(3))
        events += [e.code.name for e in store.write(name, key, data)]
        found = store.read(name, key)
        if found.data:
            wrong += found.data != data
        elif found.event is not None and found.event.code.name != "CACHE_MISS":
            events.append(found.event.code.name)
        if draw.random() < 0.2:
            store.drop(name)
    return {"wrong": wrong, "events": events}


def kill(store: CacheStore, kills: int) -> dict:
    """Kill a writer again and again; every entry that it had finished is there and whole."""
    draw, lost, damaged, done = random.Random(1), 0, [], 0
    for number in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for step in range(1000):
                name, key, data = entry(1000 * number + step)
                store.write(name, key, data)
                os.write(writer, f"{name}\n".encode())
        os.close(writer)
        time.sleep(draw.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        done += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        finished = os.fdopen(reader).read().split()
        there = {e.name for e in store.entries()}
        lost += len(set(finished) - there)
        damaged += [name for name in there if store.check(name)]
        store.evict(2_000_000)
    return {"lost": lost, "kills": done, **state(store), "damaged": damaged}


def kill_in_drop(store: CacheStore, damaged: int) -> dict:
    """Kill a process that has moved an entry of another one aside, before it looks at it."""
    name, key, data = entry(0)
    store.write(name, key, data)
    folder = os.open(store.path(name), os.O_RDONLY)
    store.drop(name)
    store.write(name, key, data)
    if damaged:
        (store.path(name) / ARTIFACT).write_bytes(data[:-1])
    child = os.fork()
    if child == 0:
        same_file = stores.same_file

        def ends(descriptor: int, path: Path) -> bool:
            if path.name == name:
                os.kill(os.getpid(), signal.SIGKILL)
            return same_file(descriptor, path)

        stores.same_file = ends
        store.drop(name, folder)
        os._exit(0)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    moved = not store.path(name).exists()
    store.evict()
    there = store.path(name).exists() and store.read(name, key).data == data
    return {"killed": killed, "moved": moved, "there": there, **state(store)}


def main() -> None:
    name, folder, *numbers = sys.argv[1:]
    work = {f.__name__: f for f in (full_disk, read_only, race, kill, kill_in_drop)}[name]
    print(json.dumps(work(CacheStore(Path(folder)), *map(int, numbers))))


if __name__ == "__main__":
    main()
