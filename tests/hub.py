"""A stand-in for the endpoints of the Hugging Face Hub that ``datasets`` uses to load a data set, on this machine."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub_server(repositories: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve each folder user/name as a data set; yield the address and the list of requests so far."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, form: str, *args: object) -> None:
            asked.append(form % args)

        def do_HEAD(self) -> None:
            self.respond(send=False)

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            asked_for = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            parts = unquote(urlparse(self.path).path).strip("/").split("/")  # api/datasets/U/N/paths-info/REVISION
            folder = repositories / parts[2] / parts[3]
            self.as_json([_about(folder, folder / path) for path in asked_for["paths"] if (folder / path).exists()])

        def respond(self, send: bool = True) -> None:
            parts = unquote(urlparse(self.path).path).strip("/").split("/")
            if parts[0] == "api":  # api/datasets/U/N[/revision/R | /tree/R/PATH]
                folder = repositories / "/".join(parts[2:4])
                if not folder.is_dir():
                    return self.missing("RepoNotFound")
                if parts[4:5] == ["tree"]:
                    below = folder.joinpath(*parts[6:])
                    if not below.is_dir():
                        return self.missing("EntryNotFound")
                    return self.as_json([_about(folder, path) for path in sorted(below.iterdir())])
                siblings = [{"rfilename": p.relative_to(folder).as_posix()} for p in folder.rglob("*") if p.is_file()]
                name = "/".join(parts[2:4])
                return self.as_json({"id": name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
            folder = repositories / "/".join(parts[1:3])  # datasets/U/N/resolve/R/PATH
            if not folder.is_dir():
                return self.missing("RepoNotFound")
            path = folder.joinpath(*parts[5:])
            if not path.is_file():
                return self.missing("EntryNotFound")
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("ETag", f'"{_digest(data)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if send:
                self.wfile.write(data)
            return None

        def as_json(self, content: object) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def missing(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _about(folder: Path, path: Path) -> dict[str, object]:
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": COMMIT, "size": 0}
    return {"type": "file", "path": name, "oid": _digest(path.read_bytes()), "size": path.stat().st_size}


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
