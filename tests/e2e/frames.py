# SPDX-License-Identifier: Apache-2.0
"""Frames as PROTOCOL.md 2 has them, and a relay between client and server that makes a server look older (what it takes from HELLO
the two ends never agree on), lets it go after a number of connections, asks it for another checkpoint, or loses an answer of it."""

import socket
import struct
import threading

HEADER_BYTES = 32
HELLO, JOIN, LIST, RESTORE, MARKED, REPAIR = 1, 10, 42, 60, 91, 106
HELLO_FEATURES, RESTORE_SELECTOR, REPAIR_RUN = 3, 2, 4
SELECT_STEP = 1
FEATURE_RECORD = 1 << 5


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(kind, message, version=1, payload=0, stream=0, magic=b"CRN1", message_bytes=None, sequence=1):
    head = magic + struct.pack("<BBHIIQI", version, 0, kind, stream,
                               len(message) if message_bytes is None else message_bytes, sequence, payload)
    return head + struct.pack("<I", crc32c(head + message)) + message


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def fields(message):
    """[(number, kind, value)] of a message whose fields are numbers and bytes."""
    at, found = 0, []

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            found.append((key >> 3, 0, number()))
        elif key & 7 == 2:
            size = number()
            found.append((key >> 3, 2, message[at:at + size]))
            at += size
        else:
            raise ValueError(f"a field of kind {key & 7}")
    return found


def message_of(found):
    return b"".join(varint(number << 3 | kind) + (varint(value) if kind == 0 else varint(len(value)) + value)
                    for number, kind, value in found)


class Relay:
    """A port of its own; behind it the server at `port`, without the features `lacks`; none is left after so many connections.
    step: whatever a RESTORE asks for, the server is asked for this step. loses: numbers of MARKED answers, from 1 on, in whose
    place the connection ends. repairs: the fields of each REPAIR that clients sent."""

    def __init__(self, port, lacks=0, connections=None, step=None, loses=()):
        self.port_behind, self.lacks, self.connections, self.step, self.loses = port, lacks, connections, step, loses
        self.marked = 0
        self.accepted = 0
        self.repairs = []
        self.failed = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        if self.connections is None or self.accepted < self.connections:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()

    def accept(self):
        while self.connections is None or self.accepted < self.connections:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.accepted == self.connections:
                self.listener.close()
            threading.Thread(target=self.relay, args=(client,), daemon=True).start()

    def relay(self, client):
        with client, socket.create_connection(("127.0.0.1", self.port_behind)) as server:
            back = threading.Thread(target=self.to_client, args=(client, server), daemon=True)
            back.start()
            self.to_server(client, server)
            back.join()

    def to_client(self, client, server):
        try:
            with server.makefile("rb") as source:
                while len(head := source.read(HEADER_BYTES)) == HEADER_BYTES:
                    _, _, kind, _, message, _, payload = struct.unpack("<BBHIIQI", head[4:28])
                    self.marked += kind == MARKED
                    if kind == MARKED and self.marked in self.loses:
                        server.shutdown(socket.SHUT_RDWR)
                        break
                    client.sendall(head + source.read(message + payload))
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # an end has gone, which the other one sees by itself

    def to_server(self, client, server):
        try:
            with client.makefile("rb") as source:
                while len(head := source.read(HEADER_BYTES)) == HEADER_BYTES:
                    server.sendall(self.relayed(head, source))
            server.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        except ValueError as error:
            self.failed = error
            server.shutdown(socket.SHUT_RDWR)

    def relayed(self, head, source):
        version, _, kind, stream, message_bytes, sequence, payload = struct.unpack("<BBHIIQI", head[4:28])
        message = source.read(message_bytes)
        if kind == REPAIR:
            self.repairs.append({number: value for number, _, value in fields(message)})
        elif kind == HELLO:
            less = [(number, how, value & ~self.lacks if number == HELLO_FEATURES else value)
                    for number, how, value in fields(message)]
            return frame(kind, message_of(less), version, 0, stream, sequence=sequence)
        elif kind == RESTORE and self.step is not None:
            selector = message_of([(1, 0, SELECT_STEP), (2, 2, message_of([(2, 0, self.step)]))])
            other = [field for field in fields(message) if field[0] != RESTORE_SELECTOR] + [(RESTORE_SELECTOR, 2, selector)]
            return frame(kind, message_of(other), version, 0, stream, sequence=sequence)
        return head + message + source.read(payload)
