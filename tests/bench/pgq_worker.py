"""PgQ's own worker, for comparison: run by a Python that has the packages pgq and skytools.

usage: python pgq_worker.py CONFIG     (an ini file; see tests/bench/copying.py, which writes it)
"""

import sys

from pgq.cascade.worker import CascadedWorker


class Worker(CascadedWorker):
    """Copies; there is nothing to process."""

    def process_remote_event(self, src_curs, dst_curs, ev):  # type: ignore[no-untyped-def]
        if ev.ev_type.startswith("pgq."):
            super().process_remote_event(src_curs, dst_curs, ev)


if __name__ == "__main__":
    Worker("cascade_bench", "db", sys.argv[1:]).start()
