"""A stand-in of Hugging Face's hub on this machine: it keeps what the real client sends, and serves it again."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What was asked and sent. ``answers`` are statuses for the beginnings of paths, in place of success."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.tokens: dict[str, str | None] = {}  # by path
        self.repositories: dict[str, bool] = {}  # name, and whether it is private
        self.created: list[dict[str, Any]] = []
        self.checked: list[str] = []  # cards whose header was validated
        self.objects: dict[str, bytes] = {}  # large files by their sha256
        self.files: dict[str, bytes] = {}
        self.summary = ""
        self.answers: dict[str, int] = {}

    def commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.summary = value["summary"]
            elif line["key"] == "file":
                assert value["encoding"] == "base64"
                self.files[value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile", line
                self.files[value["path"]] = self.objects[value["oid"]]
                assert len(self.objects[value["oid"]]) == value["size"]


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_request(self) -> None:
            path = urlsplit(self.path).path
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.asked.append(f"{self.command} {path}")
            status = next((code for start, code in hub.answers.items() if path.startswith(start)), 200)
            if status != 200:
                return self.answer({"error": "as the test wants"}, status)
            hub.tokens[path] = self.headers.get("Authorization")
            if "/resolve/" in path:
                return self.serve(path)
            return self.answer(*self.api(path, body))

        do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

        def api(self, path: str, body: bytes) -> tuple[Any, int]:
            if path == "/api/repos/create":
                wanted = json.loads(body)
                hub.created.append(wanted)
                name = f"{wanted['organization']}/{wanted['name']}"
                known = name in hub.repositories
                hub.repositories.setdefault(name, wanted.get("visibility") == "private")
                return {"url": f"{hub.url}/{name}"}, 409 if known else 200
            if path == "/api/validate-yaml":
                hub.checked.append(json.loads(body)["content"])
                return {"errors": [], "warnings": []}, 200
            if path.endswith("/preupload/main"):
                files = [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]
                return {"files": files}, 200
            if path.endswith("/info/lfs/objects/batch"):
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                return {"transfer": "basic", "objects": objects}, 200
            if path.startswith("/lfs/"):
                assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
                hub.objects[path.rpartition("/")[2]] = body
                return {}, 200
            if path.endswith("/commit/main"):
                hub.commit([json.loads(line) for line in body.splitlines()])
                page = f"{hub.url}/{path.removeprefix('/api/models/').removesuffix('/commit/main')}/commit/{COMMIT}"
                return {"commitUrl": page, "commitOid": COMMIT, "success": True}, 200
            name = path.removeprefix("/api/models/")
            if name in hub.repositories:
                return {"id": name, "private": hub.repositories[name], "sha": COMMIT}, 200
            return {"error": "Repository not found"}, 404

        def serve(self, path: str) -> None:
            content = hub.files.get(path.rpartition("/")[2])
            if content is None:
                self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            else:
                etag = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
                self.answer(content, 200, etag)

        def answer(self, content: Any, status: int, headers: dict[str, str] | None = None) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
