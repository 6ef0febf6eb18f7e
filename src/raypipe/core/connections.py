"""HTTP clients of this process, and why a connection failed, in a sentence that says what to do.

Proxies and certificates come from the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY,
SSL_CERT_FILE). Knows httpx; knows no server.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from raypipe.core.errors import ConfError

C = TypeVar("C")


def open_client(make: Callable[..., C], **options: Any) -> C:
    """A client of httpx with these options. Raises ConfError for a proxy or a file of certificates that it
    cannot use."""
    proxies = getproxies()
    used = [kind for kind in ("http", "https", "all", "no") if kind in proxies]
    try:
        for kind in used:
            _ = kind == "no" or urlsplit(proxies[kind]).port  # ValueError past 65535, which httpx passes on
        return make(**options)
    except (ImportError, ValueError, httpx.InvalidURL) as e:
        named = ", ".join(f"{kind.upper()}_PROXY" for kind in used)
        raise ConfError(
            f"{named or 'proxy'}: expected the address of a proxy such as http://127.0.0.1:3128, found one "
            f"that cannot be used: {e}. Correct or unset the variable, or list the server's host in NO_PROXY"
        ) from e
    except (OSError, ssl.SSLError) as e:
        raise ConfError(
            f"SSL_CERT_FILE, SSL_CERT_DIR: expected certificates in PEM form, found none to read: {e}"
        ) from e


def why_failed(error: Exception, url: str) -> str:
    """The reason of a failed request to `url`, and what to do.

    >>> why_failed(httpx.ConnectError("refused"), "http://127.0.0.1:9/v1")
    'nothing answers there: ConnectError: refused. Start the server, or correct the address'
    """
    said = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return (
            f"its certificate is not trusted: {said}. Put the certificate of its authority into a file and "
            f"name it in SSL_CERT_FILE"
        )
    if "[SSL" in said:
        return f"no TLS is spoken there: {said}. Write http:// where the server has no certificate"
    if proxy := proxy_of(url):
        return f"the proxy {proxy} does not lead there: {said}. Correct it, or list the host in NO_PROXY"
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return f"the connection broke off: {said}"
    return f"nothing answers there: {said}. Start the server, or correct the address"


def proxy_of(url: str) -> str:
    """The proxy that leads to an address, without a password, and its variable; "": none.

    >>> proxy_of("http://127.0.0.1/")
    ''
    """
    place, proxies = urlsplit(url), getproxies()
    if proxy_bypass(place.netloc) or proxy_bypass(place.hostname or ""):  # NO_PROXY=::1 has no brackets
        return ""
    for kind in (place.scheme, "all"):
        if found := proxies.get(kind):
            return f"{found.rpartition('@')[2].removeprefix('http://')} ({kind.upper()}_PROXY)"
    return ""
