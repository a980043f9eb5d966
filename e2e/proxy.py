"""A proxy between a client and the server: it writes down every exchange and can lose answers.

It shows what a client really sends, and makes the network fail at a chosen place, which the client must survive.
"""

import dataclasses
import http.client
import http.server
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable

API = "/api/v1"


@dataclasses.dataclass
class Exchange:
    """One request and its answer. `path` is without prefix and query, header names are in lower case; `time` is that of its arrival on
    the monotonic clock; `answer` is None until it came."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytes | None = None
    dropped: bool = False
    time: float = dataclasses.field(default_factory=time.monotonic)

    def json(self) -> dict:
        return json.loads(self.body)


class Proxy:
    """Forwards everything under `prefix` to `target`. `drop` is asked after the server has answered: true loses the answer by
    closing the connection. `settings` replace what the server says in client/config, to try what it does not ask for by itself. `seen` are the exchanges in the order of their arrival."""

    def __init__(self, target: str, *, prefix: str = "", drop: Callable[[Exchange], bool] | None = None, settings: dict | None = None):
        where = urllib.parse.urlsplit(target)
        self.host, self.port = where.hostname, where.port
        self.prefix = prefix
        self.drop = drop
        self.settings = settings or {}
        self.seen: list[Exchange] = []
        self.lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.forward(self)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_) -> None:
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_) -> None:
                pass  # a client that closes its connection

        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_address[1]}{prefix}"
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown()
        self.listener.server_close()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def forward(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        path, _, query = handler.path.partition("?")
        if not path.startswith(self.prefix):
            handler.send_error(404, "outside the prefix")
            return
        exchange = Exchange(handler.command, path.removeprefix(self.prefix), query, {k.lower(): v for k, v in handler.headers.items()}, body)
        with self.lock:
            self.seen.append(exchange)
        upstream = http.client.HTTPConnection(self.host, self.port, timeout=120)
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in ("connection", "accept-encoding", "transfer-encoding")}
        try:
            upstream.request(handler.command, exchange.path + ("?" + query if query else ""), body=body or None, headers=headers)
            answer = upstream.getresponse()
            content = answer.read()
        except OSError:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        finally:
            upstream.close()
        if exchange.path == API + "/client/config" and self.settings:
            content = json.dumps(json.loads(content) | self.settings).encode()
        exchange.status, exchange.answer = answer.status, content
        if self.drop is not None and self.drop(exchange):
            exchange.dropped = True
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
            return
        handler.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def paths(self, *ignored: str) -> list[str]:
        """The API paths of all requests, without those of the background that come at any time and the ones named."""
        background = {"/telemetry", "/session_heartbeat", *ignored}
        with self.lock:
            found = [e.path.removeprefix(API) for e in self.seen]
        return [p for p in found if p not in background]

    def to(self, path: str) -> list[Exchange]:
        """The exchanges with one API path."""
        with self.lock:
            return [e for e in self.seen if e.path == API + path]


def drop_first(path: str) -> Callable[[Exchange], bool]:
    """Loses the first answer of one API path."""
    done = threading.Event()

    def drop(exchange: Exchange) -> bool:
        if exchange.path != API + path or done.is_set():
            return False
        done.set()
        return True

    return drop
