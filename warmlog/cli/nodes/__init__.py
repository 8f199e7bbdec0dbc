"""`warmlog serve --nodes`: a cluster of brokers on one machine, each in a separate process.

    supervisor     serves the store (`broker.cluster.local`), starts the nodes, and restarts them when they end
    node           `warmlog serve` with ports, an id and a directory of its own

    DIR/nodes/ID        the data directory of a node, in each of log.dirs
    DIR/store.sqlite    the store, in the first of log.dirs

Start with `supervisor`. `plan` has the configuration of all nodes, `node` the life of one, `shared_listeners` the
sockets on which all of them accept, and `automatic` the number of nodes for the machine.
"""
