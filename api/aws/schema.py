"""The service model that the door speaks: botocore's own, the newest that is installed.

No shape is copied by hand, so the API's growth costs an upgrade of botocore and nothing else.
"""

from __future__ import annotations

from functools import lru_cache

from botocore.loaders import Loader
from botocore.model import ServiceModel


@lru_cache(maxsize=1)
def sagemaker() -> ServiceModel:
    """The model of Amazon SageMaker in the newest installed API version."""
    return ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")
