"""Commands that administer a cluster over Kafka's protocol: they work with clusters of Kafka, too.

`kafka_cluster` asks the brokers; each other module has the commands of one group.
"""
