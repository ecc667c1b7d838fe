"""How much is copied at once follows what arrives: what a link cannot bear is not asked for again."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cascade.db import connect
from cascade.errors import TransientError
from cascade.node.copier import Copier, Pace
from cascade.node.home import Home
from cascade.node.leaf import LeafCopier
from cascade.node.pipe import set_up_reader
from tests.fixtures.backend import Backend
from tests.fixtures.nodes import Nodes
from tests.fixtures.proxy import TO_CLIENT, FaultProxy

#: At the 400 bytes that an event is taken to have at first, all of them at once.
PACE = Pace(max_bytes=400 * 800, small_bytes=0)


@pytest.mark.parametrize("role", ["branch", "leaf"])
async def test_half_as_much_is_asked_for_when_a_range_does_not_arrive(backend: Backend, role: str) -> None:
    with Nodes.fresh(backend) as nodes:
        s1 = nodes.root()
        s2 = nodes.add("s2", role=role)
        s2.catch_up()
        for _ in range(8):
            s1.main.execute(
                "insert into queue.q (payload) select %s from generate_series(1, 100)", (Jsonb("x" * 1500),)
            )
            s1.tick()
        with FaultProxy.before(s1.dsn) as proxy:
            home = Home(set="q", dsn=s2.dsn, link_timeout_s=5)
            copier = Copier(home, pace=PACE) if role == "branch" else LeafCopier(home, None, pace=PACE)
            local = await home.connect("copier")
            me = await home.describe(local)
            position, asked = (me.tick_id, me.chain), []
            for is_cut in (True, True, False, False):
                provider = await connect(proxy.dsn(s1.dsn), service="copier")
                await set_up_reader(provider, within_s=5)
                copier.adapt(provider)
                found = await copier.next_range(provider, me, *position)
                assert found is not None
                asked.append(found.events)
                if is_cut:
                    proxy.cut_after(10_000, TO_CLIENT)
                    with pytest.raises((TransientError, psycopg.OperationalError)):
                        await copier.copy(local, provider, me, position, found)
                else:
                    await copier.copy(local, provider, me, position, found)
                    position = (found.to_tick, found.to_chain)
                provider.pgconn.finish()
            # By then it is known that they have 1500 bytes.
            assert asked == [800, 400, 200, 200]
            await local.close()
