"""Replicate partitions: copy them from the brokers that lead them, and lead them for others.

    peers/        connections to other brokers, and who leads: by another cluster's Metadata, or by the store's image
    following/    fetch partitions from their leaders and copy them to logs; used by replicas and by mirrors
    leading/      the high watermark and the in-sync replicas of a partition that this broker leads

Start with `replicas`, which brings the replicas on this broker in line with the image of the cluster. `local_replica`
is one of them and its role; `log_ends` compares the logs of all when none is known to be complete.
"""
