"""HTTP clients of this process, and explanations of failed connections with advice.

Proxies and certificates come from the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY,
SSL_CERT_FILE, SSL_CERT_DIR).
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
    """Opens an httpx client. Raises ConfError if a proxy address or the certificates cannot be used."""
    proxies = getproxies()
    used = [kind for kind in ("http", "https", "all", "no") if kind in proxies]
    try:
        for kind in used:
            _ = kind == "no" or urlsplit(proxies[kind]).port  # ValueError above 65535; httpx does not check
        return make(**options)
    except (ImportError, ValueError, httpx.InvalidURL) as e:
        named = ", ".join(f"{kind.upper()}_PROXY" for kind in used)
        raise ConfError(
            f"{named or 'proxy'}: expected a proxy address such as http://127.0.0.1:3128, found an invalid "
            f"one: {e}. Correct or unset the variable, or list the server's host in NO_PROXY"
        ) from e
    except (OSError, ssl.SSLError) as e:
        raise ConfError(f"SSL_CERT_FILE, SSL_CERT_DIR: expected certificates in PEM form: {e}") from e


def why_failed(error: Exception, url: str) -> str:
    """Explains why a request to `url` failed, with advice.

    >>> why_failed(httpx.ConnectError("refused"), "http://127.0.0.1:9/v1")
    'nothing answers there: ConnectError: refused. Start the server, or correct the address'
    """
    reason = f"{type(error).__name__}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return f"its certificate is not trusted: {reason}. Name its authority's certificate in SSL_CERT_FILE"
    if "[SSL" in reason:
        return f"the server does not speak TLS: {reason}. Write http:// if it has no certificate"
    if proxy := proxy_of(url):
        return f"the proxy {proxy} cannot reach it: {reason}. Correct the proxy, or list the host in NO_PROXY"
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        return f"the connection broke off: {reason}"
    return f"nothing answers there: {reason}. Start the server, or correct the address"


def proxy_of(url: str) -> str:
    """Returns the proxy for requests to `url`, and the variable that sets it: "127.0.0.1:3128 (HTTP_PROXY)".
    User and password are left out. Returns "" if no proxy is used.

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
