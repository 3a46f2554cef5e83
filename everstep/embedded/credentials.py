"""The keys of an embedded stack, made once on its first start and never changed: its data are encrypted with them."""

import base64
import json
import secrets
import string
from dataclasses import asdict, dataclass, field

from everstep.embedded.errors import StackError
from everstep.embedded.home import Home, write_private

_KEY_ALPHABET = string.ascii_uppercase + "234567"
_SECRET_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Credentials:
    """What a user signs in with, and what our own servers ask each other for."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    token: str = field(repr=False)
    master_key: str = field(repr=False)
    """Base64 of 32 bytes: encrypts secrets at rest."""
    database_password: str = field(repr=False)
    broker_password: str = field(repr=False)


def load(home: Home) -> Credentials | None:
    """None before the first start.

    Raises:
        StackError: the file is damaged, or the home is somebody else's.
    """
    try:
        with home.ours():
            text = home.credentials.read_text() if home.credentials.exists() else None
        return None if text is None else Credentials(**json.loads(text))
    except (ValueError, TypeError) as error:
        message = (
            f"{home.credentials} is damaged ({error}); restore it from a copy, or start afresh by removing {home.root} "
            f"(the database cannot be opened without its password)"
        )
        raise StackError(message) from error


def load_or_create(home: Home) -> Credentials:
    found = load(home)
    if found:
        return found
    made = Credentials(
        access_key_id="AKIA" + _word(_KEY_ALPHABET, 16),
        secret_access_key=_word(_SECRET_ALPHABET, 40),
        token="evs_" + secrets.token_urlsafe(32),
        master_key=base64.b64encode(secrets.token_bytes(32)).decode(),
        database_password=secrets.token_urlsafe(24),
        broker_password=secrets.token_urlsafe(24),
    )
    write_private(home.credentials, json.dumps(asdict(made), indent=2) + "\n", durable=True)
    return made


def _word(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))
