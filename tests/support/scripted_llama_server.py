"""A program in llama-server's place that does as its alias says: for what a real one cannot be made to do.

It reads its arguments and the variables that llama-server reads, and imports little: it runs under `python -ISu` and
starts in a tenth of the time.

exits           at once, with an error
deaf            never listens
loading         says 503 for ever
stubborn        ignores SIGTERM
no-drafts       does not speculate, and its log says why
stops-drafting  does not speculate once the file `--sign` is there
dies-on-probe   aborts at its first completion
no-tokens       says 500 to completions
no-turns        says 500 to chats
slow            takes two seconds for a completion
"""

import http.server
import json
import os
import signal
import sys
import time

ARGUMENTS = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
Delta = tuple[dict[str, str], str | None]
CHUNKS: tuple[Delta, ...] = ({"role": "assistant", "content": "ready"}, None), ({}, "stop")


def setting(name: str, default: str = "") -> str:
    return ARGUMENTS.get(f"--{name}") or os.environ.get(f"LLAMA_ARG_{name.replace('-', '_').upper()}", default)


WAY = setting("alias")


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, message: str, kind: str = "server_error") -> None:
        self.answer({"error": {"code": status, "message": message, "type": kind}}, status)

    def is_stranger(self) -> bool:
        key = os.environ.get("LLAMA_API_KEY")
        return bool(key) and self.headers.get("authorization") != f"Bearer {key}"

    def do_GET(self) -> None:
        n_ctx, slots = int(setting("ctx-size", "4096")), int(setting("parallel", "1"))
        if WAY == "loading":
            self.refuse(503, "Loading model", "unavailable_error")
        elif self.path == "/health":
            self.answer({"status": "ok"})
        elif self.is_stranger():
            self.refuse(401, "Invalid API Key", "authentication_error")
        elif self.path == "/props":
            facts = {"total_slots": slots, "model_path": setting("model"), "build_info": "b4242-scripted"}
            self.answer({"default_generation_settings": {"n_ctx": n_ctx}, **facts})
        elif self.path == "/slots":
            drafts = setting("spec-type", "none") != "none" and WAY != "no-drafts"
            if WAY == "stops-drafting" and os.path.exists(setting("sign")):  # noqa: PTH110 - a path less to import
                drafts = False
            slot = {"n_ctx": n_ctx, "is_processing": False, "speculative": drafts}
            self.answer([{"id": index, **slot} for index in range(slots)])
        else:
            self.refuse(404, "File Not Found", "not_found_error")

    def do_POST(self) -> None:
        body, chats = json.loads(self.rfile.read(int(self.headers["content-length"]))), "chat" in self.path
        if self.is_stranger():
            self.refuse(401, "Invalid API Key", "authentication_error")
        elif WAY == "dies-on-probe":
            print("ggml/src/ggml.c:42: GGML_ASSERT(the test said so) failed", flush=True)
            os.abort()
        elif chats and WAY == "no-turns":
            self.refuse(500, "no turn for you")
        elif chats:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for delta, reason in CHUNKS:
                choice = {"index": 0, "delta": delta, "finish_reason": reason}
                chunk = {"object": "chat.completion.chunk", "choices": [choice]}
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
        elif WAY == "no-tokens":
            self.refuse(500, "speculative batch index 7")
        else:
            count = int(body.get("n_predict") or 1)
            timings = {"prompt_n": 8, "predicted_n": count, "predicted_ms": 1.0, "draft_n": 9, "draft_n_accepted": 3}
            self.answer({"content": " ok" * count, "tokens_predicted": count, "stop": True, "timings": timings})

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Whoever hangs up: the log is the engine's."""


def told_to_end(*_: object) -> None:
    if WAY != "stubborn":
        print("it ends", flush=True)
        os._exit(0)
    print("it was told to end", flush=True)


if __name__ == "__main__":
    print("main: loading model", flush=True)
    if WAY == "exits":
        print("0.00.001.000 E srv  llama_server: failed to load the model of the test", flush=True)
        sys.exit(1)
    signal.signal(signal.SIGTERM, told_to_end)
    if WAY == "deaf":
        time.sleep(600)
    if WAY == "no-drafts":
        print("0.00.001.000 E srv    load_model: failed to load draft model, the vocab does not match", flush=True)
    server = Server(("127.0.0.1", int(setting("port"))), Handler)
    if setting("ssl-cert-file"):
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(setting("ssl-cert-file"), setting("ssl-key-file"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print("main: server is listening, with n-max", setting("spec-draft-n-max"), flush=True)
    server.serve_forever()
