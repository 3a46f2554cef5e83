"""The demonstration: a cluster, a training job, a killed node, and a loss curve that goes on."""
