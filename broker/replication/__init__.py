"""Copy partitions of other brokers: the client side of Kafka's protocol on trio.

Start with `peer.PeerCluster`, the brokers and leaders of another cluster, and `follower.Follower`, which fetches
partitions from their leaders. `connection` is one socket to a broker, `fetch_session` the client's half of KIP-227.
"""
