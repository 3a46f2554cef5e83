"""The whole control plane on one machine, from wheels alone: real Postgres, real Valkey and our own processes.

``everstep up`` runs the supervisor of this package; tests take a throw-away server from ``ephemeral_postgres`` and
``ephemeral_valkey``. Standard library only, so that a start costs no import time before the first server runs.
"""
