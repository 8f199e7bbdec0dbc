"""Lead partitions with several replicas: high watermarks, and proposals of in-sync replicas."""
