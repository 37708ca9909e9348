"""A service on a real port, and a client that may misbehave."""

import contextlib
import json
import socket
import threading
import time

from mpvae.serve import bind, make_server


@contextlib.contextmanager
def served(app):
    """Port of an app that is served for real, by a thread."""
    app.state.worker.warm.wait()
    server, listening = make_server(app), bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    app.state.connections = server.server_state.connections
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


class Wire:
    """A connection by hand, for what no client library would send."""

    def __init__(self, port, timeout=20):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.got = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *lines, body=b""):
        head = "\r\n".join([*lines, "", ""]).encode()
        self.socket.sendall(head + body)

    def read(self):
        """Status, headers and JSON of the next answer; None where the connection was cut."""
        try:
            while b"\r\n\r\n" not in self.got:
                piece = self.socket.recv(65536)
                if not piece:
                    return None
                self.got += piece
        except ConnectionResetError:
            return None
        head, _, self.got = self.got.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        while len(self.got) < length:
            self.got += self.socket.recv(65536)
        body, self.got = self.got[:length], self.got[length:]
        return int(first.split()[1]), headers, json.loads(body)

    def is_cut(self):
        """Whether the other side closes, however long that takes."""
        try:
            return self.socket.recv(65536) == b""
        except ConnectionResetError:
            return True
