"""A root that is cut off on the network itself: its packets are dropped, and nobody is told.

The proxies of the other tests run on one machine, whose kernel acknowledges what a proxy has not read; here nothing
answers at all.  Every database and its daemon are in a network namespace of their own, and so is the operator.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from cascade.dev import Cluster, all_binaries
from tests.fixtures.backend import SETTINGS, Backend, home, label
from tests.fixtures.cascade import PICTURE, eventually
from tests.fixtures.history import History
from tests.fixtures.netns import HBA, Distant, Elsewhere, Hosted, Network, missing
from tests.fixtures.operator import Operator

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def distant(templates: Path, tmp_path: Path) -> Iterator[Distant]:
    """The picture, each node on a host of its own."""
    if why := missing():
        pytest.skip(why)
    hba = tmp_path / "pg_hba.conf"
    hba.write_text(HBA)
    binaries = all_binaries()[-1]
    with ExitStack() as stack:
        network = stack.enter_context(Network.of([*PICTURE, "operator"]))
        backends = []
        for number, name in enumerate(PICTURE):
            # The templates of the other clusters: each has a system identifier of its own.
            place = templates / f"cluster{number}"
            place.mkdir(exist_ok=True)
            cluster = Cluster.temporary(
                nodes=1,
                binaries=binaries,
                settings=SETTINGS | {"hba_file": str(hba)},
                templates=place,
                account=Hosted.on(network, name),
                within=home(),
            )
            server = stack.enter_context(cluster)["n1"]
            backend = Backend(label(binaries), server.socket_dsn(user="postgres", dbname="postgres"), server)
            backend.prepare()
            backends.append(backend)
        made = stack.enter_context(Distant.fresh(backends, cast(Any, Elsewhere(network)), tmp_path))
        assert isinstance(made, Distant)
        made.network = network
        made.define()
        run(made, "set", "create", "orders")
        for name in made.nodes:
            made.start_one(name)
        for name in made.nodes:
            eventually(lambda name=name: has_node(made, name), within_s=60)
        for name in made.carriers():
            made.dbs[name].rows("select cascade.subscribe('orders', 'audit', 'earliest')")
        yield made


def has_node(orders: Distant, name: str) -> bool:
    return bool(orders.dbs[name].value("select count(*) from cascade.nodes where set = 'orders' and state = 'running'"))


def run(orders: Distant, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a command at the operator's."""
    done = orders.tool(*words)
    assert done.code in codes, done.output
    return done.output


def test_a_root_that_the_network_cuts_off_is_replaced_and_comes_back(distant: Distant) -> None:
    operator = Operator(distant)
    history = History.of(operator, random.Random(1))
    sticky, mobile = history.producers
    words = ("failover", "orders", "--dead", "s1", "--fenced-by", "its port is off", "--timeout", "2")
    with history.running():
        distant.advance("s2", "s3", "s4")
        sticky.stays_at = "s1"
        with distant.network.unplugged("s1"):
            history.more(30, at="s1")
            shown = run(distant, *words, "--dry-run", codes=(3,))
            fork = re.findall(r"--allow-loss (\d+)", shown)[-1]
            with operator.watching("s1"):
                run(distant, *words, "--allow-loss", fork)
            new = operator.root()
            assert new in ("s2", "s3")
            mobile.stays_at = new
            history.more(30, at=new)
            # Where it is, nobody can tell it: it reigns on, and takes what its own clients send.
            history.more(30, at="s1")
            assert operator.survey()["s1"]["fence"] is None
        eventually(lambda: operator.is_fenced("s1"), within_s=60)
        sticky.stays_at = None
        run(distant, "resurrect", "orders", "s1")
        history.more(30, at=new)
    run(distant, "quarantine", "republish", "orders", "s1")
    history.converge()
    counts = history.check()
    (certificate,) = operator.certificates()
    assert certificate["republished"] == certificate["tail"] == counts["quarantined"] >= 60
    assert counts["unaccounted"] == 0
