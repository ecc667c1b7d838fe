"""cascade.node: the daemon that serves one database."""
