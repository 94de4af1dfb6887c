# SPDX-License-Identifier: Apache-2.0
"""What N processes saved, M processes restore: rows become columns, columns rows, and all is checked by value. The
layouts at large are in tests/unit/engine/test_reshard.c; here are real processes, sockets and files."""

from harness import Case, Group, main

ROWS, COLUMNS = 60, 36


def share(length, world, number):
    """As torch.chunk cuts: (offset, length)."""
    each = -(-length // world)
    offset = min(each * number, length)
    return offset, min(each, length - offset)


class Reshard(Case):
    def job(self, daemon, world, by):
        group = Group(self.bed, daemon.url(), world, state=None)
        for number, rank in enumerate(group.ranks):
            rank.do("tensor", "model.w", "float32", f"{ROWS}x{COLUMNS}", "replicated")
            for name, dtype in (("optim.m", "float32"), ("optim.v", "bfloat16")):
                rows, columns = (0, ROWS), (0, COLUMNS)
                if by == "rows":
                    rows = share(ROWS, world, number)
                else:
                    columns = share(COLUMNS, world, number)
                rank.do("tensor", name, dtype, f"{ROWS}x{COLUMNS}", "sharded", "-", f"{rows[0]},{columns[0]}",
                        f"{rows[1]}x{columns[1]}")
        group.all("set")
        return group

    def test_worlds(self):
        daemon = self.daemon()
        step = 0
        for first, then in ((2, 4), (4, 2), (3, 1), (1, 3)):
            for by in (("rows", "columns"), ("columns", "rows"), ("rows", "rows")):
                with self.subTest(first=first, then=then, by=by):
                    step += 1
                    group = self.job(daemon, first, by[0])
                    group.advance(step)
                    self.assertEqual(group.end(), [0] * first)
                    group = self.job(daemon, then, by[1])
                    group.all("fill", 99)
                    self.assertEqual(group.restore(step)[0], step)
                    group.all("check", step)
                    self.assertEqual(group.end(), [0] * then)


if __name__ == "__main__":
    main()
