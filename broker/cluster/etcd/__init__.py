"""The cluster's store in etcd, through its JSON gateway.

Start with `etcd_store`. `gateway` has the messages, `client` calls the first endpoint that answers, over a `connection`
with `tls` and as the user of an `account`. `identity` refuses an etcd that is not the cluster's, `watch` iterates over
changes.
"""
