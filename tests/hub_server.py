"""A Hugging Face Hub for the tests: a few repositories in memory, over HTTP on 127.0.0.1.

It has what huggingface_hub asks for to download a file, to make a repository and to commit small files to it.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Repos = dict[str, dict[str, bytes]]  # files by repository


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, repos: Repos) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos = repos
        self.breaks_off: dict[str, int] = {}  # paths that are sent by half, and how often
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    timeout = 10
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(f"POST {self.path}")
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
            self.server.repos.setdefault(name, {})
            self.send_json({"url": f"{self.server.url}/{name}"})
        elif "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                     for f in json.loads(body)["files"]]  # fmt: skip
            self.send_json({"files": files})
        elif "/commit/" in self.path:
            repo = self.path.removeprefix("/api/models/").split("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.repos[repo][line["value"]["path"]] = base64.b64decode(
                        line["value"]["content"]
                    )
            self.send_json({"commitUrl": f"{self.server.url}/{repo}/commit/{COMMIT}", "commitOid": COMMIT,
                            "success": True})  # fmt: skip
        elif self.path == "/api/validate-yaml":
            self.send_json({"errors": [], "warnings": []})
        else:
            self.send_json({"error": "not here"}, 404)

    def answer(self, with_body: bool) -> None:
        self.server.requests.append(f"{self.command} {self.path}")
        repo, _, rest = self.path.lstrip("/").partition("/resolve/")
        name = rest.partition("/")[2]
        if repo not in self.server.repos or name not in self.server.repos[repo]:
            code = "EntryNotFound" if repo in self.server.repos else "RepoNotFound"
            self.send_json({"error": code}, 404, {"X-Error-Code": code, "X-Repo-Commit": COMMIT}, with_body)
            return
        data = self.server.repos[repo][name]
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header(
            "ETag", f'"{hashlib.sha256(data).hexdigest()}"'
        )  # as the hub has it for files in LFS
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if with_body:
            left = self.server.breaks_off.get(f"{repo}/{name}", 0)
            broken = left > 0
            self.server.breaks_off[f"{repo}/{name}"] = left - 1
            self.wfile.write(data[start : start + (len(data) - start) // 2] if broken else data[start:])
            self.close_connection = broken

    def send_json(
        self, content: object, status: int = 200, headers: dict[str, str] | None = None, body: bool = True
    ) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serve(repos: Repos) -> Iterator[Hub]:
    hub = Hub(repos)
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join(timeout=10)
