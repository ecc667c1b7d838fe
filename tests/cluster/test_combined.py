"""Combined sets on real servers, a daemon per database: merging, tracking, and what may be lost on the way."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.backend import Backend
from tests.fixtures.cascade import eventually
from tests.fixtures.combined import BODY, Combined
from tests.fixtures.nursery import Nursery


@pytest.fixture
def combined(servers: list[Backend], nursery: Nursery, tmp_path: Path) -> Iterator[Combined]:
    """A combined set that is not defined yet."""
    with Combined.fresh(servers, nursery, tmp_path) as made:
        assert isinstance(made, Combined)
        yield made


def test_four_parts_become_one_queue(combined: Combined) -> None:
    combined.build().run()
    with combined.pressure():
        eventually(lambda: len(combined.merged("s3")) > 2000, within_s=60)
    assert combined.check_merged() > 2000
    assert combined.merges("s1", "copying")
    assert combined.merges("s2", "tracking")
    assert not combined.merges("s3")


def fail_over(combined: Combined, set_name: str, dead: str, *options: str) -> dict[str, Any]:
    """Do as an operator who reads the dry run, and accepts what it says."""
    command = ("failover", set_name, "--dead", dead, "--json", *options)
    shown = combined.cli(*command, "--dry-run", check=False)
    assert shown.exit_code == 3, shown.stdout + shown.stderr
    (plan,) = json.loads(shown.stdout)["plans"]
    assert plan["loss"], plan["refusals"]
    fork = plan["loss"]["fork"]
    done = combined.cli(*command, "--fenced-by", "kill -9", "--allow-loss", str(fork))
    combined.distribute()
    return dict(json.loads(done.stdout))


def test_the_combined_root_is_handed_over_and_back_under_pressure(combined: Combined) -> None:
    combined.build(written=False).run()
    assert "nothing to do" in combined.cli("plan").stdout
    with combined.pressure():
        for heir in ("s2", "s1", "s2"):
            before = len(combined.merged("s3"))
            combined.cli("switchover", "s", "--to", heir, "--yes")
            combined.distribute()
            assert combined.root_of("s") == heir
            eventually(lambda heir=heir: combined.merges(heir, "copying"), within_s=60)
            eventually(lambda n=before: len(combined.merged("s3")) > n + 500, within_s=60)
    assert combined.merges("s1", "tracking")
    assert combined.check_merged() > 1500
    refused = combined.cli("switchover", "s", "--to", "s3", "--yes", check=False)
    assert refused.exit_code == 3
    assert "s3 cannot become the root: it is no combined-failover" in refused.stderr and "name s1" in refused.stderr
    assert combined.cli("plan", "--json").exit_code == 0
    assert "merge-leaf" not in combined.file().read_text()


def test_a_lost_combined_root_is_followed_and_comes_back_as_the_combined_failover(combined: Combined) -> None:
    combined.build(("a", "b"), written=False).run()
    with combined.pressure():
        eventually(lambda: len(combined.merged("s2")) > 500, within_s=60)
        with combined.down("s1"):
            done = fail_over(combined, "s", "s1")
            assert done["kind"] == "failover" and combined.root_of("s") == "s2"
            before = len(combined.merged("s3"))
            eventually(lambda: len(combined.merged("s3")) > before + 500, within_s=60)
            # The parts are not held up by a merge-leaf that is silent.
            assert combined.cli("plan", "a", "b").exit_code == 0
        eventually(lambda: has_stood_down(combined, "s1"), within_s=60)
        combined.cli("resurrect", "s", "s1", "--yes")
        eventually(lambda: combined.merges("s1", "tracking"), within_s=60)
    assert combined.check_merged() > 1000
    assert "nothing to do" in combined.cli("plan").stdout
    combined.cli("switchover", "s", "--to", "s1", "--yes")
    combined.distribute()
    combined.put("a", 100)
    assert combined.check_merged() > 1000


def has_stood_down(combined: Combined, name: str) -> bool:
    """Whether a former combined-root is fenced; one that has nothing of its own is a branch already."""
    query = "select fence is not null or role = 'branch' from cascade.nodes where set = 's'"
    try:
        return bool(combined.dbs[name].value(query))
    except psycopg.OperationalError:
        combined.dbs[name].disconnect()
        return False


@pytest.mark.parametrize("also_lost", [False, True])
def test_a_lost_root_of_a_part_is_followed_by_its_merge_leaves(combined: Combined, also_lost: bool) -> None:
    """What was merged beyond the fork stays in s; it is put back into the part, and does not come twice."""
    combined.build(("a",), branches=("a",), written=False).run()
    combined.put("a", 300)
    combined.settle_all()
    daemon = combined.daemon("a2")
    daemon.process.send_signal(signal.SIGSTOP)
    combined.put("a", 50)
    # The tail is merged, and a2 does not have it.
    combined.settle_all()
    with combined.down("a1", *(["s1"] if also_lost else [])):
        daemon.process.send_signal(signal.SIGCONT)
        fail_over(combined, "a", "a1")
        assert combined.root_of("a") == "a2"
        if also_lost:
            fail_over(combined, "s", "s1", "--without", "s3")
        combined.put("a", 100, node="a2")
        root = combined.root_of("s")
        combined.settle_all(root, *(["s2"] if not also_lost else []))
        found, wanted = combined.merged(root), combined.union()
        assert not wanted - found and (found - wanted).total() == 50
    eventually(lambda: combined.dbs["a1"].value("select fence is not null from cascade.nodes where set = 'a'"))
    combined.cli("resurrect", "a", "a1", "--yes")
    if also_lost:
        eventually(lambda: has_stood_down(combined, "s1"), within_s=60)
        combined.cli("resurrect", "s", "s1", "--yes")
    combined.cli("quarantine", "republish", "a", "a1", "--yes")
    combined.settle_all()
    for name in ("s1", "s2", "s3"):
        assert combined.merged(name) == combined.union() and combined.union().total() == 450, name
    assert "nothing to do" in combined.cli("plan").stdout


def test_a_combined_set_is_a_part_of_another_and_loses_its_root(combined: Combined) -> None:
    """What t has of the tail that s lost comes again through s, under other ids of s, and is not taken twice."""
    combined.build(("a", "b"), written=False, above=True).run()

    def reached(*names: str) -> bool:
        wanted = union()
        return all(not wanted - combined.merged(name, "t") for name in names)

    def union() -> Counter[tuple[Any, ...]]:
        own = combined.dbs["e1"].rows(f"select 'e', id, {BODY} from queue.e where origin is null")
        return combined.union() + Counter(own)

    for part, root in (("a", "a1"), ("b", "b1"), ("e", "e1")):
        combined.put(part, 200, node=root)
    eventually(lambda: reached("t1", "t2"), within_s=60)
    # What follows comes to t, and not to s2 and s3.
    daemons = [combined.daemon(name).process for name in ("s2", "s3")]
    for daemon in daemons:
        daemon.send_signal(signal.SIGSTOP)
    for part, root in (("a", "a1"), ("b", "b1"), ("e", "e1")):
        combined.put(part, 100, node=root)
    eventually(lambda: reached("t1", "t2"), within_s=60)
    with combined.down("s1"):
        for daemon in daemons:
            daemon.send_signal(signal.SIGCONT)
        fail_over(combined, "s", "s1")
        combined.put("a", 50)
        eventually(lambda: reached("t1"), within_s=60)
        combined.dbs["s2"].tick("s")
        # Its merge-leaf of s has caught up: all that comes again has come.
        tick = combined.at("s2")
        query = "select tick_id from cascade.parts where set = 't' and part = 's'"
        eventually(lambda: (combined.dbs["t1"].value(query) or 0) >= tick, within_s=60)
    eventually(lambda: combined.merged("t1", "t") == combined.merged("t2", "t") == union(), within_s=60)
    assert union().total() == 950 and set(combined.merged("t1", "t").values()) == {1}
