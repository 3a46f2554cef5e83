"""What each node is told to run for a job, derived from the job's rows. No choices: the rows say it all."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from sqlalchemy.orm import Session

from everstep.evidence import HANG_AFTER_S, HANG_AFTER_VARIABLE
from everstep.protocol import Assignment, Launch, Member, Process
from everstep.protocol import Generation as Membership
from models.checkpoint.policy import policy_of
from models.directive import queries as directives
from models.directive.changes import settle_assignments
from models.ids import NodeId
from models.job import queries as jobs
from models.job.plain import grace_of, is_plain
from models.job.states import ENDED
from models.job.table import Job, JobProcess
from models.node.table import Node


def tell(session: Session, job: Job, *, now: datetime) -> None:
    """Issues the assignments that differ from what the nodes were told before."""
    told = {directive.node_id: directive.assignment for directive in directives.of_job(session, job.id)}
    present: dict[NodeId, list[JobProcess]] = defaultdict(list)
    if job.halted_at is None and job.state not in ENDED:
        for process in jobs.processes(session, job.id, alive_only=True):
            present[process.node_id].append(process)
    membership = _membership(session, job)
    wanted = {node_id: _assignment(job, present.get(node_id, []), membership).to_wire() for node_id in {*told, *present}}
    changed = {node_id: assignment for node_id, assignment in wanted.items() if told.get(node_id) != assignment}
    if changed:
        settle_assignments(session, job.id, changed, now=now)


def _assignment(job: Job, processes: list[JobProcess], membership: Membership | None) -> Assignment:
    """Nothing to run means: end what runs, and the generation is of no concern there any more."""
    listed = sorted(processes, key=lambda process: (process.local_rank, process.id))
    return Assignment(
        job=job.id,
        launch=_launch(job),
        processes=tuple(Process(id=one.id, rank=one.rank, local_rank=one.local_rank) for one in listed),
        generation=membership if processes else None,
        grace_s=grace_of(job.spec, job.state).total_seconds(),
    )


def _launch(job: Job) -> Launch:
    """``WORLD_SIZE`` is there before the first generation is: a process rehearses with a batch of about the right size.

    The namespace is not the user's to name here: the control plane has checked that no other job saves in the one of the job file.
    """
    spec = job.spec
    own = {} if is_plain(spec) else {"WORLD_SIZE": str(job.replicas * job.processes_per_node)}
    ours = {
        "EVERSTEP_NAMESPACE": policy_of(spec, job.id).namespace,
        HANG_AFTER_VARIABLE: str(spec.get("hang_after") or HANG_AFTER_S),
    }
    given = {str(name): str(value) for name, value in (spec.get("env") or {}).items()}
    return Launch(
        command=tuple(str(word) for word in spec["command"]),
        working_dir=str(spec.get("working_dir") or "/"),
        env=own | given | ours,
        seed=int(spec.get("seed") or 0),
        is_plain=is_plain(spec),
        max_restarts=job.max_restarts,
    )


def _membership(session: Session, job: Job) -> Membership | None:
    """The current generation, with the addresses that the nodes have now: an agent that restarted may listen elsewhere."""
    generation = jobs.generation(session, job.id, job.generation) if job.generation else None
    if generation is None:
        return None
    members = []
    first: Node | None = None
    for rank, process_id in enumerate(generation.members):
        process = session.get_one(JobProcess, process_id)
        node = session.get_one(Node, process.node_id)
        first = first or node
        members.append(Member(rank, process.id, node.id, node.address or "", process.local_rank))
    rendezvous = f"{first.address}:{first.rendezvous_port}" if first else ""
    return Membership(
        job=job.id,
        number=generation.number,
        cause=generation.cause,
        members=tuple(members),
        rendezvous=rendezvous,
        token=job.rendezvous_token,
    )
