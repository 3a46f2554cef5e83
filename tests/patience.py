"""How much longer than on a quiet machine a test waits for what another process or thread decides, before it says that it never came."""

PATIENCE = 3.0
