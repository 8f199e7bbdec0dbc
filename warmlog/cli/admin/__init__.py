"""Commands that administer a cluster over Kafka's protocol, and therefore also work with Kafka clusters.

`kafka_cluster` sends the requests; every other module has the commands of one group.
"""
