"""A control plane without agents or projects, for the fuzzer: it lists nothing and knows no path. And an agent that agrees to everything."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KNOWN = {"/agents": b"[]", "/health": b'{"status":"ok"}', "/projects": b"[]"}
KNOWN |= dict.fromkeys(["/execute-task", "/self-update", "/restart", "/uninstall"], b'{"accepted":true}')


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = KNOWN.get(self.path)
        status = 200 if body else 404
        body = body or b'{"detail":"Not Found"}'
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
