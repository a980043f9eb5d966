"""A proxy between a client and the server: it writes down every exchange, can lose answers, and can be a bad network.

It shows what a client really sends, and makes the network fail at a chosen place or at random ones, which the client must survive.
"""

import collections
import dataclasses
import http.client
import http.server
import json
import random
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


class BadNetwork:
    """What befalls requests, drawn from a seed: each is lost before it arrives, or its answer is lost, or it arrives twice (one after
    the other, or both at once), or late, or behind the request that follows it. `rate` is the share of requests that something
    happens to; `done` counts what happened. The network is good to telemetry and heartbeats."""

    KINDS = ("lose request", "lose answer", "duplicate", "duplicate at once", "delay", "reorder")

    def __init__(self, seed: int, rate: float):
        self.random = random.Random(seed)
        self.rate = rate
        self.done: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        self.passed = threading.Condition(self.lock)
        self.count = 0

    def draw(self, path: str) -> str:
        """What happens to the next request."""
        with self.lock:
            if path.startswith((API + "/telemetry", API + "/session_heartbeat")) or self.random.random() >= self.rate:
                return ""
            kind = self.random.choice(self.KINDS)
            self.done[kind] += 1
            return kind

    def wait(self, kind: str) -> None:
        """Holds a request back: for a moment, or until another has passed, which may never come."""
        if kind == "delay":
            time.sleep(self.random.uniform(0.05, 0.6))
        elif kind == "reorder":
            with self.passed:
                now = self.count
                self.passed.wait_for(lambda: self.count > now, timeout=0.5)

    def pass_on(self) -> None:
        """A request has gone by."""
        with self.passed:
            self.count += 1
            self.passed.notify_all()


class Proxy:
    """Forwards everything under `prefix` to `target`. `drop` is asked after the server has answered: true loses the answer by
    closing the connection. `network` does more. `settings` replace what the server says in client/config, to try what it does not ask for by itself. `seen` are the exchanges in the order of their arrival."""

    def __init__(self, target: str, *, prefix: str = "", drop: Callable[[Exchange], bool] | None = None, settings: dict | None = None, network: BadNetwork | None = None):
        where = urllib.parse.urlsplit(target)
        self.host, self.port = where.hostname, where.port
        self.prefix = prefix
        self.drop = drop
        self.network = network
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
        headers = {k: v for k, v in handler.headers.items() if k.lower() not in ("connection", "accept-encoding", "transfer-encoding")}
        happens = self.network.draw(exchange.path) if self.network else ""
        if happens == "lose request":
            exchange.dropped = True
            self.hang_up(handler)
            return
        if happens in ("delay", "reorder"):
            self.network.wait(happens)
        try:
            if happens == "duplicate":
                self.ask(exchange, headers)
            elif happens == "duplicate at once":
                threading.Thread(target=self.ask_quietly, args=(exchange, headers), daemon=True).start()
            if self.network:
                self.network.pass_on()
            answer, content = self.ask(exchange, headers)
        except (OSError, http.client.HTTPException):
            self.hang_up(handler)
            return
        if exchange.path == API + "/client/config" and self.settings:
            content = json.dumps(json.loads(content) | self.settings).encode()
        exchange.status, exchange.answer = answer.status, content
        if happens == "lose answer" or (self.drop is not None and self.drop(exchange)):
            exchange.dropped = True
            self.hang_up(handler)
            return
        handler.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def ask(self, exchange: Exchange, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        """Sends a request to the server as it came."""
        upstream = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            upstream.request(exchange.method, exchange.path + ("?" + exchange.query if exchange.query else ""), body=exchange.body or None, headers=headers)
            answer = upstream.getresponse()
            return answer, answer.read()
        finally:
            upstream.close()

    def ask_quietly(self, exchange: Exchange, headers: dict[str, str]) -> None:
        try:
            self.ask(exchange, headers)
        except (OSError, http.client.HTTPException):
            pass  # nobody waits for this answer

    @staticmethod
    def hang_up(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        try:
            handler.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the client was faster

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
