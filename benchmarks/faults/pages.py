"""An alert of our own, which shows that a page could be sent."""

import json
import urllib.request
from contextlib import suppress
from typing import Final

from devstack.parts import AlertmanagerProcess
from devstack.webhook import ReceivedAlert, Webhook

ALERT: Final = "FaultsTrial"


def can_page(alertmanager: AlertmanagerProcess, webhook: Webhook, number: str) -> bool:
    """Post an alert called *number*, and say whether it has reached the webhook."""
    labels = {"alertname": ALERT, "number": number, "severity": "warning"}
    body = json.dumps([{"labels": labels}]).encode()
    url = f"{alertmanager.url}/api/v2/alerts"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=1):
        return bool(webhook.pages(ALERT, number=number))
    return False


def others(webhook: Webhook) -> list[ReceivedAlert]:
    """Return the firing pages that are not ours."""
    return [page for page in webhook.pages(status="firing") if page.alert != ALERT]
