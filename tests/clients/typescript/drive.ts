// Drives the control plane through a client that openapi-typescript and openapi-fetch made from the checked-in document, as it came out.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./everstep.js";

const [url, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url, headers: { authorization: `Bearer ${token}` } });

type Group = components["schemas"]["ClusterInstanceGroupSpecification"];
const group: Group = {
  InstanceGroupName: "workers",
  InstanceCount: 2,
  InstanceType: "ml.c5.xlarge",
  ExecutionRole: "arn:aws:iam::123456789012:role/everstep",
};

const arns: string[] = [];
for (const name of ["a", "b", "c"]) {
  const made = await client.POST("/v1/clusters", {
    params: { header: { "Idempotency-Key": `make ${name}` } },
    body: { ClusterName: name, InstanceGroups: [group], NodeProvisioningMode: "Continuous" },
  });
  assert.equal(made.response.status, 201);
  arns.push(made.data!.ClusterArn);
}

const first = await client.GET("/v1/clusters", { params: { query: { MaxResults: 2, SortBy: "NAME" } } });
const rest = await client.GET("/v1/clusters", {
  params: { query: { MaxResults: 2, SortBy: "NAME", NextToken: first.data!.NextToken } },
});
const names = [...first.data!.ClusterSummaries, ...rest.data!.ClusterSummaries].map((row) => row.ClusterName);
assert.deepEqual(names, ["a", "b", "c"]);

const path = { ClusterName: arns[0]! };
const shown = await client.GET("/v1/clusters/{ClusterName}", { params: { path } });
assert.equal(shown.data!.ClusterName, "a");
assert.ok(Date.parse(shown.data!.CreationTime!) > 0);
const held = shown.response.headers.get("etag")!;
const again = await client.GET("/v1/clusters/{ClusterName}", { params: { path, header: { "If-None-Match": held } } });
assert.equal(again.response.status, 304);

const outdated = await client.PATCH("/v1/clusters/{ClusterName}", {
  params: { path, header: { "If-Match": '"another"' } },
  body: { NodeRecovery: "None" },
});
assert.equal(outdated.response.status, 412);
assert.equal(outdated.error!.code, "PreconditionFailed");

const file = { name: "gpt", cluster: "a", command: ["python", "train.py"], working_dir: "/work", replicas: 1 };
const job = await client.POST("/v1/jobs", { body: file });
assert.equal(job.response.status, 201);
const job_id = job.data!.JobId;
const found = await client.GET("/v1/jobs/{job_id}", { params: { path: { job_id } } });
assert.equal(found.data!.Status, "Queued");
await client.POST("/v1/jobs/{job_id}/stop", { params: { path: { job_id } } });

const deleted = await client.DELETE("/v1/clusters/{ClusterName}", { params: { path, header: { "If-Match": held } } });
assert.equal(deleted.response.status, 202);
const refused = await client.GET("/v1/clusters/{ClusterName}", { params: { path: { ClusterName: "nobody" } } });
assert.equal(refused.error!.status, 404);
console.log("driven");
