"""The command line. One module a noun; ``main`` puts them together."""
