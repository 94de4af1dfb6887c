# SPDX-License-Identifier: Apache-2.0
"""A daemon that meets hostile bytes at its port, or peers of other versions, goes on serving, within bounds (I8)."""

import socket
import struct
import threading
import time
from pathlib import Path

from frames import HELLO, JOIN, LIST, frame, varint
from harness import Case, Group, Rank, cairn, main, rng, token, wait_until


def hello(least, most):
    return b"\x08" + varint(least) + b"\x10" + varint(most)


def viewer_of(project, run):
    name = b"".join(key + varint(len(text)) + text.encode() for key, text in ((b"\x0a", project), (b"\x12", run)))
    return b"\x0a" + varint(len(name)) + name + b"\x10\x01"


class Hostile(Case):
    def setUp(self):
        super().setUp()
        self.server = self.daemon(listen_tcp="127.0.0.1:0", session_login="2s", session_max="300")
        self.run_attempt(self.server, 1)

    def connect(self):
        sock = socket.create_connection(("127.0.0.1", self.server.port()))
        sock.settimeout(30)
        return sock

    def closes(self, sock):
        """What the daemon says until it closes."""
        said = b""
        try:
            while data := sock.recv(65536):
                said += data
        except ConnectionResetError:
            pass
        sock.close()
        return said

    def still_serves(self):
        self.assertIsNone(self.server.process.poll(), self.server.tail())
        self.assert_whole(self.server, {(1, 1)}, "server")

    def test_random_bytes(self):
        random = rng()
        for _ in range(60):
            sock = self.connect()
            data = random.randbytes(random.randrange(1, 5000))
            if random.random() < 0.5:
                data = b"CRN1\x01\x00" + data
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            self.closes(sock)
        self.still_serves()

    def test_damaged_frames(self):
        random = rng()
        good = frame(1, hello(1, 1))
        for at in range(len(good)):
            sock = self.connect()
            try:
                sock.sendall(good[:at] + bytes([good[at] ^ 1 << random.randrange(8)]) + good[at + 1:])
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has closed already
            self.closes(sock)
        self.still_serves()

    def test_oversized_lengths(self):
        for words in ({"message_bytes": 0xFFFFFFFF}, {"payload": 0xFFFFFFFF}, {"message_bytes": 1 << 30},
                      {"payload": 1 << 30}):
            sock = self.connect()
            sock.sendall(frame(1, b"", **words))
            self.closes(sock)  # at once, not after memory was found for it
        for kind in (24, 29):  # payload before anybody has logged in
            sock = self.connect()
            sock.sendall(frame(1, hello(1, 1)))
            sock.sendall(frame(kind, b"", payload=4096, sequence=2) + bytes(4096))
            self.closes(sock)
        self.still_serves()

    def test_other_versions(self):
        sock = self.connect()
        sock.sendall(frame(1, hello(7, 9)))
        said = self.closes(sock)
        self.assertEqual(struct.unpack_from("<H", said, 6)[0], 3)  # ERROR
        self.assertIn(b"version", said)
        sock = self.connect()
        sock.sendall(frame(1, hello(1, 1), version=9))
        self.closes(sock)
        self.still_serves()

    def test_a_server_of_another_version(self):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(10)

        def serve():
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with sock:
                    sock.recv(4096)
                    welcome = b"\x08\x09\x1a\x10" + bytes(range(16)) + b"\x20\x64\x28\x7f"
                    welcome += b"\x30\x80\x20\x38\x80\x20\x42\x01x"
                    sock.sendall(frame(2, welcome))  # version 9
                    time.sleep(0.2)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        status, _, err = cairn("ls", "demo/run", "--server", f"127.0.0.1:{listener.getsockname()[1]}",
                               "--timeout", 5)
        listener.close()
        self.assertIn(status, (1, 5), err)
        self.assertIn("version", err)

    def test_slow_loris(self):
        good = frame(1, hello(1, 1))
        slow = [self.connect() for _ in range(20)]
        started = time.monotonic()
        for at in range(6):
            for sock in slow:
                try:
                    sock.send(good[at:at + 1])
                except OSError:
                    pass
            time.sleep(0.5)
        for sock in slow:  # [session] login = 2s, however busily they drip
            self.closes(sock)
        self.assertLess(time.monotonic() - started, 30)  # a byte every half second would take all day
        self.still_serves()

    def test_many_idle_connections(self):
        def descriptors():
            return len(list(Path(f"/proc/{self.server.process.pid}/fd").iterdir()))

        base = descriptors()
        idle = [self.connect() for _ in range(200)]
        self.still_serves()
        self.run_attempt(self.server, 2, resumes="latest")
        for sock in idle:
            self.closes(sock)
        wait_until("descriptors return to base", lambda: descriptors() <= base)
        self.assert_whole(self.server, {(1, 1), (2, 1 + 1)}, "server")

    def test_silent_connections_lock_nobody_out(self):
        self.assertEqual(self.server.stop(), 0)
        self.server.start(session_login="300s")  # none of them makes room by itself
        silent = [self.connect() for _ in range(400)]
        silent += [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for sock in silent[400:]:
            sock.connect(str(self.server.socket))
        for where in (f"unix:{self.server.socket}", f"127.0.0.1:{self.server.port()}"):
            started = time.monotonic()
            cairn("ls", "--server", where, "--timeout", 120, check=0)
            self.assertLess(time.monotonic() - started, 60)
        self.run_attempt(self.server, 2)
        for sock in silent:
            sock.close()
        self.assert_whole(self.server, {(1, 1), (2, 2)}, "server")

    def test_more_connections_than_allowed(self):
        self.assertEqual(self.server.stop(), 0)
        self.server.start(session_max="8")
        tcp, unix = f"127.0.0.1:{self.server.port()}", f"unix:{self.server.socket}"
        far = Group(self.bed, self.server.tcp_url(), world=7)  # an eighth of the places is for Unix sockets
        refused = cairn("ls", "--server", tcp, "--timeout", 1)
        self.assertIn(refused[0], (5, 11), refused[2])
        cairn("ls", "--server", unix, check=0)
        near = Rank(self.bed)
        near.do("open", self.server.url(), 0, 1, token(), "viewer")
        refused = cairn("ls", "--server", unix, "--timeout", 1)
        self.assertIn(refused[0], (5, 11), refused[2])
        far.end()
        near.end()
        wait_until("there is room again", lambda: cairn("ls", "--server", tcp, "--timeout", 2)[0] == 0)
        self.still_serves()

    def test_replies_that_nobody_takes(self):
        self.assertEqual(self.server.stop(), 0)
        self.server.start(session_grant_idle="2s")
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        sock.connect(("127.0.0.1", self.server.port()))
        sock.sendall(frame(HELLO, hello(1, 1)) + frame(JOIN, viewer_of("demo", "run"), sequence=2, stream=2))
        sock.settimeout(1)
        said = b""
        while said.count(b"CRN1") < 2:  # WELCOME and JOINED
            said += sock.recv(4096)
        sent = 0
        with self.assertRaises((TimeoutError, ConnectionError)):  # the daemon does not read on, then lets go
            for sequence in range(3, 400_000, 100):
                data = b"".join(frame(LIST, b"\x10\x0a", sequence=number, stream=number)
                                for number in range(sequence, sequence + 100))
                sock.sendall(data)
                sent += len(data)
                time.sleep(0.005)  # 256 requests at once would be another offence
        self.assertLess(sent, 8 << 20)
        wait_until("the peer that does not read is gone",
                   lambda: "did not read its answers in time" in self.server.log())
        sock.close()
        self.still_serves()


if __name__ == "__main__":
    main()
