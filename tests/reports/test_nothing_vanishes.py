"""R-4: an emulator took input that no answer ever told of again, and answered some operations with nothing.

Members: tests/api/aws/test_from_the_model.py sets each of them, and tests/api/aws/test_support.py has a word for every
one. Here: every operation of the service is served, or refused in words that name it.
"""

from __future__ import annotations

import re

from api.aws.schema import sagemaker as model
from api.aws.table.sagemaker import SAGEMAKER
from tests.api.serving import Server

FAMILY = re.compile(r"Cluster(?!.*Job)|ComputeQuota|TrainingPlan|ReservedCapacity|UltraServers|(Add|List|Delete)Tags$")
"""Operations of clusters, of what governs and what feeds them."""


def test_no_operation_of_the_service_is_answered_with_silence(server: Server):
    for name in model().operation_names:
        if name in SAGEMAKER:
            continue
        answer = server.call(name, {})
        said = answer.json()
        assert (answer.status_code, said["__type"]) == (400, "UnknownOperationException"), name
        assert said["message"].startswith(f"{name} is not supported by Everstep"), name


def test_an_empty_request_to_the_family_is_served_or_told_what_it_lacks(server: Server):
    family = list(filter(FAMILY.search, model().operation_names))
    assert len(family) > 30
    for name in family:
        answer = server.call(name, {})
        required = model().operation_model(name).input_shape.required_members
        assert answer.status_code == (400 if required or name not in SAGEMAKER else 200), name
        if answer.status_code == 400:
            assert answer.json()["__type"] in {"ValidationException", "UnknownOperationException"}, name
