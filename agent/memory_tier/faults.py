"""What a memory tier breaks of its own on purpose, when an operator injects a fault."""

from __future__ import annotations

from agent.memory_tier.store import Gone, Store
from everstep.protocol import Fault, FaultOutcome, FaultReport

CORRUPT_SHARD = "corrupt-shard"


def strike(fault: Fault, store: Store | None) -> FaultReport:
    """Changes a byte in the middle of this node's youngest copy of a shard; its seal stays what it was."""
    if fault.kind != CORRUPT_SHARD or fault.is_over:
        return FaultReport(fault.id, FaultOutcome.MISSED, f"a memory tier knows no fault of kind {fault.kind}")
    if store is None:
        return FaultReport(fault.id, FaultOutcome.MISSED, "the memory tier of this node is off")
    if fault.namespace is None or fault.step is None or fault.index is None:
        return FaultReport(fault.id, FaultOutcome.MISSED, "corrupt-shard needs a namespace, a step and the shard's index")
    seal = store.find(fault.namespace, fault.index, fault.step)
    where = f"shard {fault.index} of step {fault.step} of namespace {fault.namespace}"
    if seal is None or not seal.size:
        return FaultReport(fault.id, FaultOutcome.MISSED, f"this node holds no byte of {where}")
    try:
        store.spoil(seal, at=seal.size // 2)
    except Gone:
        return FaultReport(fault.id, FaultOutcome.MISSED, f"{where} went before it could be corrupted")
    return FaultReport(fault.id, FaultOutcome.STRUCK, f"byte {seal.size // 2} of {where} has been changed")
