"""Copy partitions of other brokers: the client side of Kafka's protocol on trio.

Start with `peer.PeerCluster`, the brokers and leaders of another cluster. `connection` is one socket to one of its
brokers, `fetch_session` the client's half of an incremental fetch session, `fetcher` the loop that fetches.
"""
