"""What runs in the pods of `scripted_kubectl`: answers as llama-server does, by the variables that llama-server reads.

LLAMA_ARG_ALIAS chooses a fault: `ends` at once, `loads` for ever, `falls` at its first completion.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_FAULT = os.environ.get("LLAMA_ARG_ALIAS", "")
_KEY = os.environ.get("LLAMA_API_KEY")
_DRAFTS = os.environ.get("LLAMA_ARG_SPEC_TYPE", "none") != "none"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _say(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _allowed(self) -> bool:
        if _KEY and self.headers.get("authorization") != f"Bearer {_KEY}":
            self._say({"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}, 401)
            return False
        return True

    def do_GET(self) -> None:
        if self.path == "/health" and _FAULT == "loads":
            self._say({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, 503)
        elif self.path == "/health":
            self._say({"status": "ok"})
        elif self._allowed():
            slot = {"n_ctx": 2048, "speculative": _DRAFTS, "is_processing": False}
            self._say([{"id": index, **slot} for index in (0, 1)])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))) or b"{}")
        if not self._allowed():
            return
        if _FAULT == "falls":
            sys.stderr.write("error: ggml_abort\n")
            sys.stderr.flush()
            os._exit(134)
        count = int(body.get("n_predict") or body.get("max_tokens") or 1)
        timings = {"prompt_n": 8, "predicted_n": count, "predicted_ms": 1.0, "draft_n": 9, "draft_n_accepted": 5}
        self._say({"content": "words " * count, "tokens_predicted": count, "stop": True, "timings": timings})

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    print("main: loading model", flush=True)
    if _FAULT == "ends":
        sys.exit("error: invalid device: NoSuchDevice")
    port = int(os.environ["LLAMA_ARG_PORT"])
    print(f"main: server is listening on http://127.0.0.1:{port}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()
