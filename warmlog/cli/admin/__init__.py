"""Commands that administer a cluster over Kafka's protocol, and therefore work with Kafka clusters too.

`kafka_cluster` sends the requests; each other module has the commands of one group.
"""
