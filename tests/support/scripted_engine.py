"""An engine that does as its alias says: for what a real llama-server cannot be made to do."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from support.help_engine import HELP, TODAY

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "4242 (scripted)"

_SCRIPT = """#!{python} -ISu
import sys, time
arguments = dict(zip(sys.argv[1:], sys.argv[2:]))
if "--version" in sys.argv:
    print("version: {version}")
    time.sleep({version_s})
    sys.exit()
if "--help" in sys.argv:
    print(open({help!r}, encoding="utf-8").read())
    sys.exit()
import http.server, signal
behaviour = arguments.get("--alias", "")
if behaviour == "dies":
    sys.exit("error: it was told to die")
def told_to_end(*_):
    if behaviour != "stubborn":
        sys.exit("it ends")
    print("it was told to end", flush=True)

signal.signal(signal.SIGTERM, told_to_end)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{{"status": "ok"}}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer.daemon_threads = True
http.server.ThreadingHTTPServer.handle_error = lambda *_: None  # whoever hangs up: the log is the engine's
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(arguments["--port"])), Handler)
print("it serves with n-max", arguments.get("--spec-draft-n-max"), flush=True)
server.serve_forever()
"""


def scripted_engine(directory: Path, *, version_s: float = 0.0) -> dict[str, str]:
    """Env keys that choose the scripted engine. `LLAMA_ALIAS` says what it does: `dies` at once, or is `stubborn` and
    ignores SIGTERM; anything else serves /health. It takes `version_s` seconds to tell its version, so planning does.
    """
    path = directory / "scripted-llama-server"
    path.write_text(
        _SCRIPT.format(python=sys.executable, version=VERSION, version_s=version_s, help=str(HELP / f"{TODAY}.txt")),
        encoding="utf-8",
    )
    path.chmod(0o755)
    return {"LLAMA_ENGINE": "llama-server", "LLAMA_BIN": str(path)}
