"""Checkpoints that cost next to nothing and can be loaded: memory of this node, memory of its peers, an object store."""
