"""A Hugging Face hub for one repository, as far as uploads of a folder and downloads need it: files arrive in `files`."""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse


class Hub:
    """Runs as long as the `with` block. `files` are the contents of the repository by name, after each commit. With `part`
    large files are uploaded in parts of so many bytes."""

    def __init__(self, part: int = 0):
        self.part = part
        self.parts: dict[str, bytes] = {}
        self.private = False
        self.commits = 0
        self.requests: list[tuple[str, str, str]] = []  # method, path and Authorization of each
        self.files: dict[str, bytes] = {}
        self.large: dict[str, bytes] = {}  # uploaded contents by SHA-256, which commits refer to
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, body, status: int = 200, etag: str = "") -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                if etag:
                    self.send_header("ETag", etag)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def send_file(self, name: str) -> None:
                content = hub.files[name]
                begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
                self.send_response(206 if begin else 200)
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                self.send_header("X-Repo-Commit", hub.sha())
                self.send_header("ETag", f'"{hub.digest(name)}"')
                self.send_header("Content-Length", str(len(content) - begin))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content[begin:])

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urllib.parse.unquote(self.path.partition("?")[0])
                hub.requests.append((self.command, path, self.headers.get("Authorization", "")))
                if path == "/api/whoami-v2":
                    self.answer({"type": "user", "name": "ann", "auth": {"type": "access_token"}})
                elif path == "/api/validate-yaml":
                    self.answer({"errors": [], "warnings": []})
                elif path == "/api/repos/create":
                    asked = json.loads(body)
                    hub.private = hub.private or asked.get("visibility") == "private"
                    self.answer({"url": f"{hub.url}/{asked.get('organization', 'ann')}/{asked['name']}"})
                elif "/preupload/" in path:
                    upload = lambda name: "lfs" if name.endswith(".safetensors") else "regular"  # noqa: E731
                    self.answer({"files": [{"path": f["path"], "uploadMode": upload(f["path"]), "shouldIgnore": False} for f in json.loads(body)["files"]]})
                elif path.endswith("/info/lfs/objects/batch"):
                    objects = json.loads(body)["objects"]
                    self.answer({"transfer": "basic", "objects": [o | hub.upload(o) for o in objects]})
                elif path.startswith("/large/"):
                    matches = hashlib.sha256(body).hexdigest() == path.removeprefix("/large/")
                    hub.large[path.removeprefix("/large/")] = body
                    self.answer({}, 200 if matches else 400)
                elif path.startswith("/part/"):
                    hub.parts[path] = body
                    self.answer({}, etag=f'"{hashlib.md5(body).hexdigest()}"')
                elif path.startswith("/complete/"):
                    asked = json.loads(body)
                    parts = [hub.parts[f"/part/{asked['oid']}/{part['partNumber']}"] for part in asked["parts"]]
                    tags = [f'"{hashlib.md5(part).hexdigest()}"' for part in parts]
                    whole = b"".join(parts)
                    matches = hashlib.sha256(whole).hexdigest() == asked["oid"] and tags == [part["etag"] for part in asked["parts"]]
                    hub.large[asked["oid"]] = whole
                    self.answer({}, 200 if matches else 400)
                elif "/revision/" in path and path.startswith("/api/models/"):
                    self.answer(hub.revision())
                elif "/tree/" in path and path.startswith("/api/models/"):
                    self.answer(hub.tree())
                elif "/resolve/" in path and path.rsplit("/", 1)[1] in hub.files:
                    self.send_file(path.rsplit("/", 1)[1])
                elif "/commit/" in path:
                    hub.commit(body)
                    self.answer({"commitUrl": f"{hub.url}/ann/adapter/commit/{hub.sha()}", "commitOid": hub.sha(), "hookOutput": ""})
                else:
                    self.answer({"error": f"not here: {path}"}, 404)

            do_GET = do_HEAD = do_POST = do_PUT = handle_any

            def log_message(self, *_) -> None:
                pass

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.listener.server_address[1]}"

    def sha(self) -> str:
        return f"{self.commits:040x}"

    def digest(self, name: str) -> str:
        """What the hub knows a file by: SHA-256 of a large one, git's object id of another."""
        content = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def revision(self) -> dict:
        """The newest commit and its files."""
        siblings = []
        for name, content in self.files.items():
            entry = {"rfilename": name, "size": len(content), "blobId": self.digest(name)[:40]}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"sha256": self.digest(name), "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return {"id": "ann/adapter", "sha": self.sha(), "private": self.private, "siblings": siblings}

    def tree(self) -> list[dict]:
        """The same in the other form that a hub has for it."""
        entries = []
        for sibling in self.revision()["siblings"]:
            entry = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"], "oid": sibling["blobId"]}
            if large := sibling.get("lfs"):
                entry["lfs"] = {"oid": large["sha256"], "size": large["size"], "pointerSize": large["pointerSize"]}
            entries.append(entry)
        return entries

    def upload(self, asked: dict) -> dict:
        """How a large file is to be sent; nothing where it is here."""
        oid, size = asked["oid"], asked["size"]
        if oid in self.large:
            return {}
        if not self.part:
            return {"actions": {"upload": {"href": f"{self.url}/large/{oid}"}}}
        count = -(-size // self.part)
        header = {"chunk_size": str(self.part)} | {str(n + 1): f"{self.url}/part/{oid}/{n + 1}" for n in range(count)}
        return {"actions": {"upload": {"href": f"{self.url}/complete/{oid}", "header": header}}}

    def commit(self, body: bytes) -> None:
        """Takes a commit: lines of JSON, each an operation."""
        self.commits += 1
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                self.files[value["path"]] = self.large[value["oid"]]
            elif operation["key"] == "deletedFile":
                del self.files[value["path"]]

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.listener.shutdown()
        self.listener.server_close()
