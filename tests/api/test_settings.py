from __future__ import annotations

import base64

import pytest

from api.settings import Settings, SettingsError

GOOD = {
    "EVERSTEP_DATABASE_URL": "postgresql+psycopg://x",
    "EVERSTEP_BROKER_URL": "redis://y",
    "EVERSTEP_MASTER_KEY": base64.b64encode(b"k" * 32).decode(),
}


def test_settings_come_from_the_environment_with_the_contract_s_defaults():
    settings = Settings.from_environment(GOOD)
    assert (settings.region, settings.account_id, settings.master_key) == ("us-east-1", "123456789012", b"k" * 32)
    assert settings.bootstrap.access_key_id is None


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_missing_variable_is_named(missing):
    with pytest.raises(SettingsError, match=missing):
        Settings.from_environment({name: value for name, value in GOOD.items() if name != missing})


@pytest.mark.parametrize("key", ["not base64!", base64.b64encode(b"short").decode()])
def test_a_master_key_that_is_none_is_refused(key):
    with pytest.raises(SettingsError, match="EVERSTEP_MASTER_KEY"):
        Settings.from_environment(GOOD | {"EVERSTEP_MASTER_KEY": key})
