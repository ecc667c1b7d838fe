"""Workers that are killed with -9 in the middle: every message is completed exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fixtures.database import Database

ROOT = Path(__file__).parents[2]
WORKERS = 4


class Crowd:
    """Worker processes of which one dies now and then, and another comes in its place."""

    def __init__(self, db: Database, how: str) -> None:
        self._db, self._how, self.killed = db, how, 0
        self.processes = [self._start(number) for number in range(WORKERS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.fixtures.work_process", self._db.dsn, f"w{number}", self._how]
        return subprocess.Popen(command, cwd=ROOT)

    def kill_one(self, chance: random.Random) -> None:
        """Kill one that has messages in hand, if there is one."""
        busy = sorted(row[0] for row in self._db.rows("select worker from cascade_internal.work_claim"))
        if not busy:
            return
        number = int(chance.choice(busy).removeprefix("w"))
        assert self.processes[number].poll() is None, "nobody ends by itself"
        self.processes[number].kill()
        self.processes[number].wait(20)
        self.processes[number] = self._start(number)
        self.killed += 1

    @classmethod
    @contextmanager
    def at_work(cls, db: Database, how: str) -> Iterator[Crowd]:
        crowd = cls(db, how)
        try:
            yield crowd
        finally:
            for process in crowd.processes:
                process.kill()
                process.wait(20)


def work(db: Database, how: str, count: int) -> tuple[int, int]:
    """Have messages worked on by processes that die, and return how many were seen, and how often in all."""
    db.queue()
    db.main.execute("create table seen (id bigint)")
    options = '{"backoff": "constant", "backoff_delay": "10 ms", "max_attempts": 100}'
    db.rows("select cascade.subscribe('q', 'w', mode => 'work', options => %s)", options)
    chance = random.Random(7)
    with Crowd.at_work(db, how) as crowd:
        for _ in range(10):
            db.main.execute(
                "insert into queue.q (payload) select to_json(n) from generate_series(1, %s) as n", (count // 10,)
            )
            db.tick()
        seen, end = 0, time.monotonic() + 90
        while seen < count:
            assert time.monotonic() < end, f"{seen} of {count} after {crowd.killed} deaths"
            time.sleep(chance.uniform(0.02, 0.1))
            if crowd.killed < 12:
                crowd.kill_one(chance)
            db.rows("select * from cascade.tend_work()")
            seen = int(db.value("select count(distinct id) from seen"))
    assert crowd.killed >= 3
    return seen, int(db.value("select count(*) from seen"))


def test_ten_thousand_messages_are_completed_exactly_once_whoever_dies(db: Database) -> None:
    assert work(db, "careful", 10_000) == (10_000, 10_000)
    assert db.value("select count(*) from cascade.peek('q', 'w')") == 0
    assert db.value("select count(*) from cascade.work_messages('q', 'w', null, 100)") == 0


def test_this_test_would_notice(db: Database) -> None:
    """Effects that are not part of the completion come twice, when a worker dies between the two."""
    seen, times = work(db, "careless", 3_000)
    assert seen == 3_000 and times > 3_000
