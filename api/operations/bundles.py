"""Who may have the agent's bundle: a node that has its token, or is about to get one."""

from __future__ import annotations

import hmac

from sqlalchemy.orm import Session

from api.operations import agents
from models.access.secrets import boot_token
from models.errors import Unauthenticated
from models.ids import NodeId
from models.node.states import NodeState
from models.node.table import Node


def admit(session: Session, token: str, claim: str | None, *, master_key: bytes) -> None:
    """``claim`` is what a host was launched under, shown with its boot token; without one the token must be a node's own.

    A boot token opens the bundle for as long as there is the node, also when it has been used: a host may be set up anew.

    Raises:
        Unauthenticated: nobody's token, or one of another claim.
        NodeGone: the node has been released.
    """
    if claim is None:
        agents.identify(session, token)
        return
    is_its_own = hmac.compare_digest(boot_token(master_key, NodeId(claim)).encode(), token.encode())
    node = session.get(Node, claim) if is_its_own else None
    if node is None:
        raise Unauthenticated
    if node.state is NodeState.GONE:
        raise agents.NodeGone
