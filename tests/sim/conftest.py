from tests.live import api, api_process

__all__ = ["api", "api_process"]
