#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves of honest ranks alone, and beside 1,100 silent connections and 20 peers that never read their replies.

Both in turn in one run, with the same daemon and the same ranks. The hostile peers are a process of their own. A silent
peer connects and says nothing, and connects again within a second when the daemon lets it go. A peer that does not read logs in as a
viewer, asks for lists until the daemon takes no more, and comes back when it is closed. Measuring begins when all of
them are stuck; coming back, with all that they ask then, is part of it. Told are saves a second, the
ratio, and what the daemon held at most beyond what it held before.
"""

import argparse
import resource
import select
import socket
import subprocess
import sys
import time

from benchlib import (MIB, SOURCE, Daemon, Place, cairn_group, common_options, finish_options, machine, median, say,
                      table, write_json)

sys.path.insert(0, str(SOURCE / "tests/e2e"))
from frames import HELLO, JOIN, LIST, frame, varint  # noqa: E402 (the path comes first)

ASK_BYTES_MAX = 64 * MIB  # of one peer in one connection: a daemon that takes so much takes anything


def viewer_frames():
    names = b"".join(key + varint(len(text)) + text.encode() for key, text in ((b"\x0a", "bench"), (b"\x12", "hostile")))
    join = b"\x0a" + varint(len(names)) + names + b"\x10\x01"
    return frame(HELLO, b"\x08\x01\x10\x01") + frame(JOIN, join, sequence=2, stream=2)


class NonReader:
    """Logs in, then asks and asks; what it could not send yet is in `left`."""

    def __init__(self, port):
        self.port = port
        self.connect()

    def connect(self):
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(("127.0.0.1", self.port))
        self.sock.sendall(viewer_frames())
        self.sock.setblocking(False)
        self.sequence, self.left, self.sent = 3, b"", 0

    def ask(self):
        if self.sent > ASK_BYTES_MAX:
            return
        if not self.left:
            self.left = b"".join(frame(LIST, b"\x10\x64", sequence=number, stream=number)
                                 for number in range(self.sequence, self.sequence + 50))
            self.sequence += 50
        try:
            done = self.sock.send(self.left)
            self.left, self.sent = self.left[done:], self.sent + done
        except BlockingIOError:
            pass
        except OSError:
            self.sock.close()
            self.connect()


def be_hostile(port, silent, nonreaders):
    """Until standard input ends."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    quiet = {}
    for _ in range(silent):
        sock = socket.create_connection(("127.0.0.1", port))
        quiet[sock.fileno()] = sock
    peers = [NonReader(port) for _ in range(nonreaders)]
    settled = begun = time.monotonic()
    while time.monotonic() - settled < 1 and time.monotonic() - begun < 10:  # until the daemon reads none of them
        before = sum(peer.sent for peer in peers)
        for peer in peers:
            peer.ask()
        settled = settled if sum(peer.sent for peer in peers) == before else time.monotonic()
        time.sleep(0.01)
    print("ready", flush=True)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    for fd in quiet:
        poll.register(fd, select.POLLIN)
    gone, back_at = 0, time.monotonic() + 1
    while True:
        for fd, _ in poll.poll(50):
            if fd == 0:
                return
            poll.unregister(fd)
            quiet.pop(fd).close()  # its place was needed, or its time was over
            gone += 1
        if time.monotonic() > back_at:
            for _ in range(gone):
                sock = socket.create_connection(("127.0.0.1", port))
                quiet[sock.fileno()] = sock
                poll.register(sock.fileno(), select.POLLIN)
            gone, back_at = 0, time.monotonic() + 1
        for peer in peers:
            peer.ask()


def saves_per_s(group, step, count):
    begin = time.monotonic()
    for number in range(step, step + count):
        group.tell(f"change {number}")
        group.tell(f"save {number}")
    return count / (time.monotonic() - begin)


def run(options):
    place = Place(options.dir)
    daemon = Daemon(place, options.build, "store")
    group = cairn_group(place, options.build, daemon, options.transport, ranks=2, bytes=options.bytes,
                        run="bench/hostile", name="honest")
    samples = {"alone": [], "beside": [], "held_mib": []}
    step = 1
    for number in range(options.repeat + 1):  # the first round warms up
        alone = saves_per_s(group, step, options.saves)
        before = daemon.proc.status_bytes("VmRSS")
        hostile = place.start([sys.executable, __file__, "--be-hostile", daemon.port, options.silent, options.nonreaders],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if hostile.stdout.readline().strip() != "ready":
            raise SystemExit("bench: the hostile peers did not start")
        beside = saves_per_s(group, step + options.saves, options.saves)
        held = daemon.proc.status_bytes("VmRSS") - before
        hostile.stdin.close()
        hostile.wait(60)
        step += 2 * options.saves
        daemon.prune(step)
        if number > 0 or options.smoke:
            samples["alone"].append(alone)
            samples["beside"].append(beside)
            samples["held_mib"].append(held / MIB)
            say(f"round {number}: {alone:.1f} saves/s alone, {beside:.1f} beside")
    group.close()
    daemon.end()
    place.close()
    return samples


def main():
    if sys.argv[1:2] == ["--be-hostile"]:
        be_hostile(*(int(word) for word in sys.argv[2:5]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=16 * MIB, help="of all ranks together")
    parser.add_argument("--saves", type=int, default=100, help="in each half of a round")
    parser.add_argument("--silent", type=int, default=1100)
    parser.add_argument("--nonreaders", type=int, default=20)
    parser.add_argument("--transport", default="tcp", help="unix, memfd, tcp")
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.saves, options.bytes, options.silent, options.nonreaders = 3, MIB, 40, 2
    samples = run(options)
    result = {"alone, saves a second": median(samples["alone"]), "beside, saves a second": median(samples["beside"]),
              "beside / alone": median([b / a for a, b in zip(samples["alone"], samples["beside"])])}
    table(f"saves over {options.transport} beside {options.silent} silent peers and {options.nonreaders} that do not read",
          "", result)
    table("memory of the daemon beyond what it had", "MiB", {"most of a round": max(samples["held_mib"])})
    write_json(options.json, {"machine": machine(), "samples": samples, "result": result})


if __name__ == "__main__":
    main()
