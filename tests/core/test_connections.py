"""Connections that fail: what is said of proxies, certificates and addresses, and what to do."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from raypipe.core.connections import open_client, proxy_of, why_failed
from raypipe.core.errors import ConfError


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def reason(url: str) -> str:
    with open_client(httpx.Client, timeout=5) as client, pytest.raises(httpx.HTTPError) as e:
        client.get(url)
    return why_failed(e.value, url)


def test_nothing_there_and_no_tls_there_are_told_apart(server):
    assert "nothing answers there: ConnectError" in reason("http://127.0.0.1:9/v1")
    assert "the server does not speak TLS" in reason(f"https://127.0.0.1:{server.server_port}/v1")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_certificate_of_no_known_authority_is_said_and_taken_once_it_is_named(
    server, tmp_path, monkeypatch
):
    make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(["openssl", *make.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}/v1"
    assert "its certificate is not trusted" in (said := reason(url)) and "SSL_CERT_FILE" in said
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with open_client(httpx.Client, timeout=5) as client:
        assert client.get(url).status_code == 501
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "key.pem"))
    with pytest.raises(ConfError, match=r"SSL_CERT_FILE.*certificates in PEM form"):
        open_client(httpx.Client)


def test_a_proxy_that_leads_nowhere_or_cannot_be_used_is_named_without_its_password(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://ada:s3cret@127.0.0.1:9")
    said = reason("http://llm.example.org/v1")
    assert "the proxy 127.0.0.1:9 (HTTP_PROXY) cannot reach it" in said and "s3cret" not in said
    monkeypatch.setenv("NO_PROXY", "llm.example.org")
    assert proxy_of("http://llm.example.org/v1") == ""
    monkeypatch.setenv("NO_PROXY", "::1")
    assert proxy_of("http://[::1]:8000/v1") == "" and proxy_of("http://[::2]:8000/v1")
    for wrong in ("http://127.0.0.1:99999", "socks5://127.0.0.1:9", "gopher://127.0.0.1:9"):
        monkeypatch.setenv("ALL_PROXY", wrong)
        with pytest.raises(ConfError, match=r"ALL_PROXY.*: expected a proxy address") as e:
            open_client(httpx.AsyncClient)
        assert "s3cret" not in str(e.value)
