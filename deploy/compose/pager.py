"""Stands in for Slack and PagerDuty: prints each page that Alertmanager sends."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 9095


def lines(notification: dict[str, Any]) -> list[str]:
    """Return what *notification* says (Alertmanager's webhook format, version 4)."""
    said = []
    for alert in notification["alerts"]:
        word = "PAGE" if alert["status"] == "firing" else alert["status"]
        said.append(f"{word}: {alert['labels']['alertname']}")
        texts = alert["annotations"]
        said += [
            f"  {texts[name]}" for name in ("summary", "description", "first") if name in texts
        ]
    return said


class Pager(BaseHTTPRequestHandler):
    """Prints what is posted to it."""

    def do_POST(self) -> None:
        notification = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        print("\n".join(lines(notification)), flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the log is for pages."""


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Pager).serve_forever()
