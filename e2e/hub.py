"""A Hugging Face hub for one repository, as far as an upload of a folder needs it: files arrive in `files`."""

import base64
import hashlib
import http.server
import json
import threading


class Hub:
    """Runs as long as the `with` block. `files` are the contents of the repository by name, after each commit."""

    def __init__(self):
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}  # uploaded contents by SHA-256, which commits refer to
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, body, status: int = 200) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                if path == "/api/whoami-v2":
                    self.answer({"type": "user", "name": "ann", "auth": {"type": "access_token"}})
                elif path == "/api/validate-yaml":
                    self.answer({"errors": [], "warnings": []})
                elif path == "/api/repos/create":
                    asked = json.loads(body)
                    self.answer({"url": f"{hub.url}/{asked.get('organization', 'ann')}/{asked['name']}"})
                elif "/preupload/" in path:
                    upload = lambda name: "lfs" if name.endswith(".safetensors") else "regular"  # noqa: E731
                    self.answer({"files": [{"path": f["path"], "uploadMode": upload(f["path"]), "shouldIgnore": False} for f in json.loads(body)["files"]]})
                elif path.endswith("/info/lfs/objects/batch"):
                    objects = json.loads(body)["objects"]
                    self.answer({"transfer": "basic", "objects": [o | {"actions": {"upload": {"href": f"{hub.url}/large/{o['oid']}"}}} for o in objects]})
                elif path.startswith("/large/"):
                    matches = hashlib.sha256(body).hexdigest() == path.removeprefix("/large/")
                    hub.large[path.removeprefix("/large/")] = body
                    self.answer({}, 200 if matches else 400)
                elif "/commit/" in path:
                    hub.commit(body)
                    self.answer({"commitUrl": f"{hub.url}/ann/adapter/commit/1", "commitOid": "1" * 40, "hookOutput": ""})
                else:
                    self.answer({"error": f"not here: {path}"}, 404)

            do_GET = do_HEAD = do_POST = do_PUT = handle_any

            def log_message(self, *_) -> None:
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_address[1]}"

    def commit(self, body: bytes) -> None:
        """Takes a commit: lines of JSON, each an operation."""
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.files[value["path"]] = self.large[value["oid"]]

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.listener.shutdown()
        self.listener.server_close()
