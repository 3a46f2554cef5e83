"""A cluster's first and last steps with whatever boto3 is found, configured by its environment alone. Prints one JSON document.

``first_steps.py create NAME``, and when the cluster is in service ``first_steps.py delete NAME``.
"""

import json
import sys

import boto3
import botocore

step, name = sys.argv[1:]
sagemaker = boto3.client("sagemaker")
group = {
    "InstanceGroupName": "workers",
    "InstanceType": "ml.c5.large",
    "InstanceCount": 1,
    "ExecutionRole": "arn:aws:iam::123456789012:role/test",
}


def create():
    arn = sagemaker.create_cluster(ClusterName=name, InstanceGroups=[group])["ClusterArn"]
    described = sagemaker.describe_cluster(ClusterName=arn)
    pages = sagemaker.get_paginator("list_clusters").paginate(NameContains=name)
    try:
        sagemaker.delete_cluster(ClusterName=name)
    except sagemaker.exceptions.ConflictException as error:
        too_early = error.response["Error"]["Code"]
    return {
        "is_one_arn": described["ClusterArn"] == arn,
        "described": [described["ClusterName"], described["ClusterStatus"], described["InstanceGroups"][0]["TargetCount"]],
        "listed": [one["ClusterName"] for page in pages for one in page["ClusterSummaries"]],
        "deleted_too_early": too_early,
    }


def delete():
    arn = sagemaker.delete_cluster(ClusterName=name)["ClusterArn"]
    try:
        sagemaker.describe_cluster(ClusterName=f"{name}-nobody")
    except sagemaker.exceptions.ResourceNotFound as error:
        missing = error.response["Error"]["Code"]
    return {"status": sagemaker.describe_cluster(ClusterName=arn)["ClusterStatus"], "missing": missing}


print(json.dumps({"botocore": botocore.__version__, **{"create": create, "delete": delete}[step]()}))
