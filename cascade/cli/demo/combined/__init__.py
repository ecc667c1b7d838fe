"""The play of cascade demo --combined: four queues become one, which loses its root.

    a1   b1   c1   d1                roots of the sets a, b, c and d
     └────┴────┴────┴──> s1 combined-root ──> s3 branch
                          └────> s2 combined-failover

Four shops insert at roots of their own.  At s1, s2 and s3 headquarters handle the events of s, and write what they
handled in the transaction that moves their position.  So at the end every event of every part must be in s once, in
the order of its part, and have been handled once, on every carrier, whatever was killed and promoted meanwhile.

places.py has the servers and the file, shops.py producers and consumers, acts.py what happens, proof.py what is
compared at the end.
"""
