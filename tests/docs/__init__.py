"""The documents: examples run, links lead somewhere, references are what the generator prints."""
