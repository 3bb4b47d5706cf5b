"""When a certificate is valid, read from its DER: the standard library shows it to peers only."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

BEGIN: Final = "-----BEGIN CERTIFICATE-----"
END: Final = "-----END CERTIFICATE-----"
# Tags of ASN.1 (X.690), and the order of a certificate's fields (RFC 5280, 4.1).
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
VALIDITY: Final = 3


class _Element(NamedTuple):
    tag: int
    content: bytes


def validity(pem: str) -> tuple[datetime, datetime]:
    """Return from when until when the first certificate in *pem* is valid.

    Raises ValueError if there is none, or if it is damaged.
    """
    try:
        start = pem.index(BEGIN)
        der = ssl.PEM_cert_to_DER_cert(pem[start : pem.index(END, start) + len(END)])
        (certificate,) = _elements(der)
        signed, *_ = _elements(certificate.content)
        fields = [each for each in _elements(signed.content) if each.tag != VERSION]
        begin, end = map(_time, _elements(fields[VALIDITY].content))
    except (IndexError, ValueError) as error:
        raise ValueError("it has no certificate that can be read") from error
    return begin, end


def _elements(der: bytes) -> Iterator[_Element]:
    """Yield the elements that follow each other in *der*."""
    while der:
        length, start = der[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(der[2:start])
        yield _Element(der[0], der[start : start + length])
        der = der[start + length :]


def _time(element: _Element) -> datetime:
    text = element.content.decode("ascii")
    if element.tag == UTC_TIME:  # Two digits of the year, for 1950 to 2049.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
