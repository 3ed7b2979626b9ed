"""A hub on the loopback: the routes of huggingface.co that the client calls, for models in memory."""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LICENSES = ("apache-2.0", "mit", "cc-by-sa-4.0")
LARGE_FILES = (".safetensors", ".bin", ".msgpack", ".h5", ".onnx")


@dataclass
class Published:
    """A model: revision -> commit, commit -> its files; and the token that a request needs."""

    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str | None = None
    gated: bool = False
    private: bool = False
    messages: list[str] = field(default_factory=list)


class HubServer:
    """Answers as huggingface.co does for models.

    Attributes:
        log: "METHOD path" of each request, in order.
        tokens: the Authorization header of each, or None.
        broken: path ending -> number of times that the answer's body stops in the middle.
        spoilt: path ending -> bytes to send instead, with the length and ETag of the right ones.
        down: answer everything with 503.
        writers: token -> the organisation that it may write to.
        lost: names of files that the hub loses while it commits them.
    """

    def __init__(self):
        self.models: dict[str, Published] = {}
        self.log: list[str] = []
        self.tokens: list[str | None] = []
        self.broken: dict[str, int] = {}
        self.spoilt: dict[str, bytes] = {}
        self.down = False
        self.writers: dict[str, str] = {}
        self.lost: set[str] = set()
        self.large: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def publish(self, repo: str, files: Mapping[str, bytes], *, revision: str = "main", **conditions) -> str:
        """Publishes files at a branch or tag of a model; the commit is their hash."""
        listing = sorted((name, hashlib.sha1(content).hexdigest()) for name, content in files.items())
        commit = hashlib.sha1(repr(listing).encode()).hexdigest()
        model = self.models.setdefault(repo, Published())
        model.commits[commit] = dict(files)
        model.revisions |= {revision: commit, commit: commit}
        for name, value in conditions.items():
            setattr(model, name, value)
        return commit

    def asked(self, method: str = "GET") -> list[str]:
        """The names of the requested files, in order."""
        return [line.rsplit("/", 1)[1] for line in self.log if line.startswith(method) and "/resolve/" in line]

    @property
    def listings(self) -> int:
        return sum("api/models/" in line for line in self.log)

    def stop(self) -> None:
        """Closes the server's socket: connections are refused."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    try:
        yield server
    finally:
        server.stop()


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format, *args):
            pass

        def do_HEAD(self):
            self._answer()

        def do_GET(self):
            self._answer()

        def do_PUT(self):
            oid = self.path.rsplit("/", 1)[1]
            content = self._body()
            if hashlib.sha256(content).hexdigest() != oid:
                return self._refuse(400)
            hub.large[oid] = content
            return self._send(b"", {})

        def do_POST(self):
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.log.append(f"POST {path}")
            hub.tokens.append(self.headers.get("Authorization"))
            body = self._body()
            if hub.down:
                return self._refuse(503)
            if path == "api/validate-yaml":
                return self._validate(json.loads(body)["content"])
            organisation = hub.writers.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
            if organisation is None:
                return self._refuse(401)
            if path == "api/repos/create":
                return self._create(json.loads(body), organisation)
            batch = path.endswith(".git/info/lfs/objects/batch")
            repo = path.removesuffix(".git/info/lfs/objects/batch") if batch else "/".join(path.split("/")[2:4])
            if not repo.startswith(f"{organisation}/"):
                return self._refuse(403)
            if batch:
                return self._json(
                    {"transfer": "basic", "objects": [self._place(o) for o in json.loads(body)["objects"]]}
                )
            model, (action, revision) = hub.models[repo], path.split("/", 5)[4:]
            if action == "branch":
                if revision in model.revisions:
                    return self._refuse(409)
                model.revisions[revision] = model.revisions["main"]
                return self._json({})
            if action == "preupload":
                return self._json({"files": [_mode(file) for file in json.loads(body)["files"]]})
            return self._commit(repo, revision, [json.loads(line) for line in body.splitlines()])

        def _validate(self, card: str):
            license = next((line.split(": ")[1] for line in card.splitlines() if line.startswith("license: ")), None)
            wrong = [{"message": f'"license" must be one of {LICENSES}'}] if license not in (None, *LICENSES) else []
            return self._json({"errors": wrong, "warnings": []}, 400 if wrong else 200)

        def _create(self, wanted: dict, organisation: str):
            repo = f"{wanted['organization']}/{wanted['name']}"
            if wanted["organization"] != organisation:
                return self._refuse(403)
            if repo in hub.models:
                return self._json({"url": f"{hub.endpoint}/{repo}"}, 409)
            hub.publish(repo, {".gitattributes": b"*.safetensors filter=lfs"})
            private = wanted.get("visibility") == "private" or wanted.get("private") is True
            hub.models[repo].private = private
            if private:
                hub.models[repo].token = next(token for token, name in hub.writers.items() if name == organisation)
            return self._json({"url": f"{hub.endpoint}/{repo}"})

        def _place(self, wanted: dict) -> dict:
            href = f"{hub.endpoint}/lfs/{wanted['oid']}"
            return wanted if wanted["oid"] in hub.large else wanted | {"actions": {"upload": {"href": href}}}

        def _commit(self, repo: str, revision: str, lines: list[dict]):
            model, header = hub.models[repo], lines[0]["value"]
            if header.get("parentCommit") not in (None, model.revisions[revision]):
                return self._refuse(412)
            files = dict(model.commits[model.revisions[revision]])
            for line in lines[1:]:
                value = line["value"]
                if line["key"] == "deletedFile":
                    del files[value["path"]]
                elif value["path"] not in hub.lost:
                    small = line["key"] == "file"
                    files[value["path"]] = base64.b64decode(value["content"]) if small else hub.large[value["oid"]]
            model.messages.append(header["summary"])
            commit = hub.publish(repo, files, revision=revision)
            return self._json({"commitUrl": f"{hub.endpoint}/{repo}/commit/{commit}", "commitOid": commit})

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _json(self, value: dict, status: int = 200):
            return self._send(json.dumps(value).encode(), {}, status)

        def _answer(self):
            path = unquote(urlsplit(self.path).path).strip("/")
            hub.log.append(f"{self.command} {path}")
            hub.tokens.append(self.headers.get("Authorization"))
            if hub.down:
                return self._refuse(503)
            api = path.startswith("api/models/")
            repo, _, rest = path.removeprefix("api/models/").partition("/revision/" if api else "/resolve/")
            model = hub.models.get(repo)
            if model is None:
                return self._refuse(401 if self.headers.get("Authorization") is None else 404, "RepoNotFound")
            if model.token is not None and self.headers.get("Authorization") != f"Bearer {model.token}":
                if model.gated:
                    return self._refuse(401, "GatedRepo")
                return self._refuse(401 if self.headers.get("Authorization") is None else 403)
            revision, name = (rest or "main", "") if api else _split(rest, model)
            if revision not in model.revisions:
                return self._refuse(404, "RevisionNotFound")
            commit = model.revisions[revision]
            files = model.commits[commit]
            if api:
                listing = {"id": repo, "sha": commit, "siblings": [_sibling(n, c) for n, c in files.items()]}
                return self._json(listing | {"private": model.private})
            if name not in files:
                return self._refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
            return self._file(name, files[name], commit)

        def _file(self, name: str, content: bytes, commit: str):
            headers = {"X-Repo-Commit": commit, "ETag": f'"{_git_hash(content)}"', "Accept-Ranges": "bytes"}
            if name.endswith(LARGE_FILES):
                headers |= {
                    "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                    "X-Linked-Size": str(len(content)),
                }
            content = hub.spoilt.get(name, content)
            if "Range" in self.headers:
                start = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                return self._send(content[start:], headers, 206, name)
            return self._send(content, headers, 200, name)

        def _send(self, body: bytes, headers: dict[str, str], status: int = 200, name: str = ""):
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.broken.get(name, 0) > 0:
                hub.broken[name] -= 1
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(body)

        def _refuse(self, status: int, code: str | None = None, headers: dict[str, str] | None = None):
            headers = dict(headers or {})
            if code is not None:
                headers |= {"X-Error-Code": code, "X-Error-Message": code}
            self._send(b"{}", headers, status)

    return Handler


def _split(rest: str, model: Published) -> tuple[str, str]:
    """Revision and file of "REVISION/FILE", either of which may have slashes."""
    for revision in sorted(model.revisions, key=len, reverse=True):
        if rest.startswith(f"{revision}/"):
            return revision, rest.removeprefix(f"{revision}/")
    return rest.partition("/")[0], rest.partition("/")[2]


def _sibling(name: str, content: bytes) -> dict:
    entry = {"rfilename": name, "size": len(content), "blobId": _git_hash(content)}
    if name.endswith(LARGE_FILES):
        pointer = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        entry |= {"lfs": pointer, "blobId": hashlib.sha1(repr(pointer).encode()).hexdigest()}
    return entry


def _mode(file: dict) -> dict:
    return {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(LARGE_FILES) else "regular"} | {
        "shouldIgnore": False
    }


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
