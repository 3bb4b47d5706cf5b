"""Of the sink: what ranks told it is there, however busy the machine was."""

import json
import socket
from pathlib import Path

from tests.rank_probe.sink import listening

PUSHES = 50


def test_push_whose_answer_nobody_waited_for_is_taken_in(tmp_path: Path) -> None:
    """What was sent before the sink closes is kept, in the order in which it was made."""
    with listening(tmp_path / "s") as sink:
        for number in reversed(range(PUSHES)):
            body = json.dumps({"heartbeat_timestamp_seconds": number}).encode()
            head = f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.socket(socket.AF_UNIX) as rank:
                rank.connect(str(tmp_path / "s"))
                rank.sendall(head.encode() + body)

    assert [snapshot["heartbeat_timestamp_seconds"] for snapshot in sink.snapshots] == [
        *range(PUSHES)
    ]
