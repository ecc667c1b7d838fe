"""cascade.topology: what a cascade should look like, as values; no database, no clock, no sockets."""
