"""Which provider the settings ask for. The only module that knows them all."""

from __future__ import annotations

from workers.providers.base import Provider
from workers.providers.local import LocalProvider
from workers.settings import Settings, SettingsError


def provider(settings: Settings) -> Provider:
    """Raises SettingsError for a name that is none of ours."""
    if settings.provider == "local":
        return LocalProvider(
            directory=settings.home / "hosts",
            api_url=settings.api_url,
            object_store_url=settings.object_store_url,
            capacity=settings.local_capacity,
            environ=settings.environ,
        )
    message = f"EVERSTEP_PROVIDER is {settings.provider!r}; this control plane knows: local"
    raise SettingsError(message)
