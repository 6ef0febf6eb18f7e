"""Which requests are allowed: with a key, or without keys from this machine alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request

from raypipe.serving.access import ApiKeys
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.tenants import ANYONE, Tenant, tenant_of


def authorize(keys: ApiKeys, headers: Headers, client: str | None, tenants: Sequence[Tenant] = ()) -> Tenant:
    """Who asks: a tenant by its key, else ANYONE. Raises RequestRefused unless this request is allowed."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (tenant := tenant_of(key.strip(), tenants)) is not None:
        return tenant
    if keys.open:
        return ANYONE
    if keys.digests or tenants:
        if scheme.lower() != "bearer" or not keys.accepts(key.strip()):
            detail = "Expected the header `authorization: Bearer KEY`."
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, detail, (), {"www-authenticate": "Bearer"})
        return ANYONE
    # The host name counts, too: a page on the web may point a name of its own at this machine.
    name = headers.get("host", "")
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if not (_loopback(client) and _loopback(host)):
        detail = "This endpoint has no keys, so it answers only its own machine."
        raise RequestRefused(HTTPStatus.FORBIDDEN, detail)
    return ANYONE


def who_asks(request: Request) -> Tenant:
    """Who makes a request, as its key said."""
    tenant: Tenant = getattr(request.state, "tenant", ANYONE)
    return tenant


def _loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
