from __future__ import annotations

import pytest
from botocore.session import get_session

from models import catalogue
from models.errors import NotFound


def test_every_type_of_the_catalogue_is_sound() -> None:
    for name in catalogue.names():
        kind = catalogue.instance_type(name)
        assert kind.name == name
        assert kind.vcpus > 0
        assert kind.memory_mib == kind.memory_gib * 1024 > 0
        assert (kind.accelerator is None) == (kind.accelerators == 0)


def test_the_catalogue_knows_every_type_that_sagemaker_lists_for_clusters() -> None:
    model = get_session().get_service_model("sagemaker")
    assert set(model.shape_for("ClusterInstanceType").enum) - set(catalogue.names()) == set()


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(NotFound, match=r"ml\.imaginary\.large"):
        catalogue.instance_type("ml.imaginary.large")
