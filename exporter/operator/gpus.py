"""What the operator may ask about the GPUs of this node: let go of them for a while, or forget."""

import json
import os
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol

from exporter.ranks.store import ROOT

# Where this is asked, on the ingest listener.
GPUS_PATH: Final = "/v1/gpus"
ACTIONS: Final = ("status", "release", "resume", "forget")
RELEASE_SECONDS: Final = 600.0
# Whoever forgets to resume loses a day of series, not all of them.
RELEASE_MAX_SECONDS: Final = 86400.0


class Nvml(Protocol):
    """The part of the supervisor that is asked."""

    @property
    def released(self) -> bool:
        """Whether no process of the exporter has the driver open, as release() asked."""
        ...

    def release(self, seconds: float) -> None:
        """Let go of the GPUs soon, and for *seconds*."""
        ...

    def resume(self) -> None:
        """Read the GPUs again soon."""
        ...


class Expected(Protocol):
    """The part of the remembered GPUs that is asked."""

    def forget(self) -> int:
        """Expect no longer what the driver does not list; return how many GPUs that are."""
        ...


class Wrong(Exception):
    """What was posted asks for nothing."""


@dataclass(frozen=True, slots=True)
class GpuOrder:
    """*action* is one of ACTIONS; *seconds* is how long a release lasts."""

    action: str
    seconds: float = RELEASE_SECONDS

    def to_json(self) -> bytes:
        """Return the body that parse() takes."""
        return json.dumps(asdict(self)).encode()


def parse(body: bytes) -> GpuOrder:
    """Return the order in *body*; raises Wrong with one sentence for the caller."""
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Wrong("The body is not JSON; send the order as one JSON object.") from error
    if not isinstance(fields, dict) or not fields.keys() <= {"action", "seconds"}:
        raise Wrong("An order is a JSON object of action and, for a release, seconds.")
    action, seconds = fields.get("action"), fields.get("seconds", RELEASE_SECONDS)
    if action not in ACTIONS:
        raise Wrong(f"Field action is none that is known; use one of {', '.join(ACTIONS)}.")
    if type(seconds) not in (int, float) or not 0 < seconds <= RELEASE_MAX_SECONDS:
        raise Wrong(f"Field seconds must be above 0 and at most {RELEASE_MAX_SECONDS:.0f}.")
    return GpuOrder(action, float(seconds))


class GpuControl:
    """Takes orders from root and from the exporter's own user. Call from the event loop only.

    They must come over the Unix socket: over TCP the kernel does not say who it is. Nothing here
    waits: a release is done once the status says so.
    """

    def __init__(self, nvml: Nvml, expected: Expected) -> None:
        self._nvml = nvml
        self._expected = expected

    def answer(self, body: bytes, uid: int | None) -> tuple[HTTPStatus, dict[str, Any]]:
        """Do what *body* asks for user *uid*; return the status and the answer."""
        if uid is None or uid not in (ROOT, os.geteuid()):
            sentence = "Only root and the exporter's own user, on its Unix socket, may ask this."
            return HTTPStatus.FORBIDDEN, {"error": sentence}
        try:
            order = parse(body)
        except Wrong as error:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(error)}
        forgotten = 0
        if order.action == "release":
            self._nvml.release(order.seconds)
        elif order.action == "resume":
            self._nvml.resume()
        elif order.action == "forget":
            forgotten = self._expected.forget()
        return HTTPStatus.OK, {"released": self._nvml.released, "forgotten": forgotten}
