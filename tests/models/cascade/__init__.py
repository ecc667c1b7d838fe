"""The rules of the cascade as pure step functions, explored breadth-first; no database."""
