"""Replicate partitions: copy them from the brokers that lead them, and lead them for others.

    peers/        connections to other brokers, and leaders: from another cluster's Metadata, or the store's image
    following/    fetch partitions from their leaders and copy them to logs; used by replicas and by mirrors
    leading/      the high watermark and the in-sync replicas of a partition that this broker leads

Start with `replicas`, which applies the image of the cluster to the replicas on this broker. `local_replica` is one of
them and its role; `log_ends` compares the logs of all replicas when none is known to be complete.
"""
