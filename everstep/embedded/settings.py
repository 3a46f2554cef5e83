"""What the environment may say about an embedded stack: ``EVERSTEP_*`` of the operator wins over the embedded default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 8600


@dataclass(frozen=True)
class StackSettings:
    """A server that is named here is used as it is, and none is embedded in its place."""

    database_url: str | None = field(default=None, repr=False)
    broker_url: str | None = field(default=None, repr=False)
    object_store_url: str | None = None
    provider: str = "local"
    region: str = "us-east-1"
    account_id: str = "123456789012"
    master_key: str | None = field(default=None, repr=False)
    inherited: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment that our processes get besides ours."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "StackSettings":
        return cls(
            database_url=environ.get("EVERSTEP_DATABASE_URL"),
            broker_url=environ.get("EVERSTEP_BROKER_URL"),
            object_store_url=environ.get("EVERSTEP_OBJECT_STORE_URL"),
            provider=environ.get("EVERSTEP_PROVIDER", cls.provider),
            region=environ.get("EVERSTEP_REGION", cls.region),
            account_id=environ.get("EVERSTEP_ACCOUNT_ID", cls.account_id),
            master_key=environ.get("EVERSTEP_MASTER_KEY"),
            # A stack started from inside a node must not pass for a part of that node, or the node's end would end it.
            inherited={name: value for name, value in environ.items() if name != "EVERSTEP_NODE_ID"},
        )


def checkout_root(package: Path) -> Path | None:
    """Where ``api``, ``workers`` and ``migrations`` lie: beside the package. None for an installed wheel, which has none."""
    root = package.parent
    return root if (root / "alembic.ini").exists() and (root / "api").is_dir() else None
