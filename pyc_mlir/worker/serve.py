"""The worker's side: receive a request, compile, answer; until the parent ends.

What is answered: ``stage`` when a step begins or ends, ``variants`` and ``prefer`` to ask a policy
that the parent has, ``part`` when the parent asks its cache first, and at last one of ``artifact``,
``refused`` and ``fault``.
"""

import faulthandler
import os
import select
import socket
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyc_mlir.artifact.artifact import from_bytes
from pyc_mlir.cache.key import program_part
from pyc_mlir.cache.store import Unkeyed
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.contract_check import check_cached
from pyc_mlir.compilation.job import at_stage
from pyc_mlir.dialects.errors import PycError, out_of_memory
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.frontends.sources import Loaded, allow_bytecode
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Policy, Site
from pyc_mlir.worker.messages import (
    COMPILE,
    FAULT,
    PART,
    artifact_frame,
    error_frame,
    job_of,
    verifications_of,
)
from pyc_mlir.worker.process import Channel, Frame


@dataclass(frozen=True)
class ParentsPolicy(Policy):
    """A policy that lives in the parent."""

    name: str
    channel: Channel

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the parent's answer."""
        question = to_data(Decision(site, "", tuple(alternatives), self.name))
        self.channel.send(Frame({"kind": "prefer", "question": question}))
        return str(self.channel.receive().header["name"])

    def variants(self, site: Site) -> Sequence[str]:
        """Return the parent's answer."""
        question = to_data(Decision(site, "", (), self.name))
        self.channel.send(Frame({"kind": "variants", "question": question}))
        return [str(name) for name in self.channel.receive().header["names"]]


class Server:
    """Answers requests that come through a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        # What `part` loaded, until it is compiled.
        self._held: Loaded | None = None

    def answer(self, request: Frame) -> Frame:
        """Return the last frame of the answer to a request."""
        try:
            os.chdir(request.header["folder"])
            return self._answer(request)
        except ConnectionError:
            raise
        except PycError as error:
            return error_frame(error)
        except Exception as error:  # noqa: BLE001  (the process boundary: the parent raises it)
            if (memory := out_of_memory(error)) is not None:
                return error_frame(memory)
            return Frame({"kind": FAULT, "traceback": traceback.format_exc()})

    def _answer(self, request: Frame) -> Frame:
        header = request.header
        held, self._held = self._held, None
        requested = job_of(request, lambda name: ParentsPolicy(name, self._channel))
        if header["do"] == PART:
            with new_context() as context, ir.Location.unknown():
                self._held = requested.load(context)
                try:
                    return Frame({"kind": PART, "part": program_part(self._held), "why": ""})
                except Unkeyed as refusal:
                    return Frame({"kind": PART, "part": None, "why": str(refusal)})
        requested = requested if held is None else requested.loaded(held)
        job = requested.under(at_stage(requested.options, header["stage"]))
        if header["do"] == COMPILE:
            return artifact_frame(build_here(job, self._stage))
        found = from_bytes(bytes(request.blobs[-1]), verified=True)
        checked = check_cached(
            found, job.options, lambda o: build_here(job.under(o)), verifications_of(request)
        )
        return artifact_frame(checked)

    @contextmanager
    def _stage(self, title: str) -> Iterator[None]:
        """Tell the parent when a step begins and ends."""
        self._channel.send(Frame({"kind": "stage", "title": title, "begins": True}))
        try:
            yield
        finally:
            self._channel.send(Frame({"kind": "stage", "title": title, "begins": False}))


def main(descriptor: int) -> None:
    """Serve the parent at the other end of a socket until it closes it."""
    connection = socket.socket(fileno=descriptor)
    # The thread before all else: a parent may go away while this process compiles.
    threading.Thread(target=_watch, args=(descriptor,), daemon=True).start()
    faulthandler.enable()
    allow_bytecode()
    channel = Channel(connection, blocking=True)
    server = Server(channel)
    try:
        channel.send(Frame({"kind": "ready"}))
        while True:
            channel.send(server.answer(channel.receive()))
    except OSError:
        return


def _watch(descriptor: int) -> None:
    """End the process once the other side of the socket is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()
    os._exit(0)
