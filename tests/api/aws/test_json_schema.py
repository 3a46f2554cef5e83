"""The service model's shapes as JSON Schema: as strict as the validation that requests meet."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from botocore.model import ServiceModel

from api.aws.json_schema import Components, ecma, schema_of, structure
from api.aws.schema import sagemaker
from api.aws.validate import Violated, read_members
from api.openapi import control_plane
from tests.api.serving import group

SHAPES: dict[str, Any] = {
    "Tree": {"type": "structure", "required": ["Name"], "members": {"Name": {"shape": "Name"}, "Below": {"shape": "Trees"}}},
    "Trees": {"type": "list", "member": {"shape": "Tree"}, "min": 1, "max": 2},
    "Name": {"type": "string", "pattern": "[\\p{Alnum}]+", "min": 1, "max": 5},
    "One": {"type": "structure", "union": True, "members": {"A": {"shape": "Count"}, "B": {"shape": "Color"}}},
    "Count": {"type": "integer", "min": 1},
    "Color": {"type": "string", "enum": ["red", "blue"]},
    "Labels": {"type": "map", "key": {"shape": "Name"}, "value": {"shape": "Count"}, "max": 3},
    "At": {"type": "timestamp"},
}


def made(name: str) -> tuple[dict[str, Any], Components]:
    components: Components = {}
    model = ServiceModel({"metadata": {"serviceFullName": "x"}, "shapes": SHAPES, "operations": {}}, "x")
    return schema_of(model.shape_for(name), components), components


def test_structures_and_enums_are_components_each_once_and_may_contain_themselves() -> None:
    schema, components = made("Tree")
    assert schema == {"$ref": "#/components/schemas/Tree"}
    assert components["Tree"]["properties"]["Below"] == {"type": "array", "items": schema, "minItems": 1, "maxItems": 2}
    assert components["Tree"]["required"] == ["Name"]
    assert made("Color")[1] == {"Color": {"type": "string", "enum": ["red", "blue"]}}


def test_a_union_has_one_member_and_a_map_tells_of_its_keys() -> None:
    one = made("One")[1]["One"]
    assert (one["minProperties"], one["maxProperties"], one["additionalProperties"]) == (1, 1, False)
    labels = made("Labels")[0]
    assert labels["propertyNames"] == {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^(?:[a-zA-Z0-9]+)$"}
    assert labels["maxProperties"] == 3


def test_times_are_text_and_integers_have_their_range() -> None:
    assert made("At")[0] == {"type": "string", "format": "date-time"}
    assert made("Count")[0] == {"type": "integer", "format": "int32", "minimum": 1, "maximum": 2**31 - 1}


def test_a_pattern_holds_for_the_whole_text() -> None:
    assert ecma("a|b") == "^(?:a|b)$"
    assert ecma(r"[\p{Alnum}\p{L}]") == r"^(?:[a-zA-Z0-9\p{L}])$"


def test_members_of_the_path_are_not_in_a_body() -> None:
    shape = sagemaker().operation_model("UpdateCluster").input_shape
    assert "ClusterName" not in structure(shape, {}, without={"ClusterName"})["properties"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"ClusterName": "-"},
        {"ClusterName": None},
        {"Flavour": 1},
        {"NodeRecovery": "Perhaps"},
        {"InstanceGroups": []},
        {"InstanceGroups": [group(count=-1)]},
        {"InstanceGroups": [group(count=6759)]},
        {"InstanceGroups": [group(InstanceStorageConfigs=[{"EbsVolumeConfig": {"VolumeSizeInGB": 1}, "FsxLustreConfig": {}}])]},
        {"Tags": [{"Key": "k" * 129, "Value": ""}]},
        {"VpcConfig": {"Subnets": ["s"]}},
    ],
)
def test_the_document_and_the_validation_refuse_the_same(change: dict[str, Any]) -> None:
    wish = {"ClusterName": "c1", "InstanceGroups": [group()]} | change
    document = control_plane()
    schema = {"$ref": "#/components/schemas/CreateClusterRequest", "components": document["components"]}
    given = {name: value for name, value in wish.items() if value is not None}
    is_described = jsonschema_rs.validator_for(schema).is_valid(given)
    try:
        read_members(sagemaker().operation_model("CreateCluster").input_shape, wish)
    except Violated:
        assert not is_described
    else:
        assert is_described


def test_every_component_is_a_schema() -> None:
    for schema in control_plane()["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema)
