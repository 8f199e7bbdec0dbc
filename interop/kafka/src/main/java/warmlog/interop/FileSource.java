package warmlog.interop;

import java.io.IOException;
import java.io.OutputStream;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.cli.ConnectDistributed;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.runtime.Connect;
import org.apache.kafka.connect.runtime.Herder;
import org.apache.kafka.connect.runtime.distributed.DistributedHerder;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorInfo;
import org.apache.kafka.connect.util.FutureCallback;

/**
 * Copies the lines of a growing file to a topic, exactly once, until standard input ends: a worker of Kafka Connect with its
 * file source.
 *
 * <p>Usage: FileSource BOOTSTRAP NAME FILE BOUNDARY. NAME is that of the worker's group, the connector and, with -out behind
 * it, the topic. BOUNDARY is where transactions end: "poll", or "never". Prints "running" when the connector is configured.
 */
public final class FileSource {
    private static final long LIMIT_S = 60;
    private static final String PLAIN = "org.apache.kafka.connect.storage.StringConverter";

    private FileSource() {}

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        Connect<DistributedHerder> connect = new ConnectDistributed().startConnect(worker(arguments[0], name));
        configure(connect.herder(), name, connector(name, arguments[2], arguments[3]));
        System.out.println("running");
        try {
            System.in.transferTo(OutputStream.nullOutputStream());
        } catch (IOException closed) {
            // as good as its end
        }
        connect.stop();
        connect.awaitStop();
    }

    /** Configures the connector as soon as the worker leads its group. */
    private static void configure(Herder herder, String name, Map<String, String> config) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (true) {
            FutureCallback<Herder.Created<ConnectorInfo>> done = new FutureCallback<>();
            herder.putConnectorConfig(name, config, true, done);
            try {
                done.get(LIMIT_S, TimeUnit.SECONDS);
                return;
            } catch (ExecutionException early) {
                if (!(early.getCause() instanceof ConnectException) || System.nanoTime() > end) {
                    throw early;
                }
                Thread.sleep(100);
            }
        }
    }

    private static Map<String, String> worker(String bootstrap, String name) {
        Map<String, String> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", name);
        settings.put("exactly.once.source.support", "enabled");
        settings.put("listeners", "http://127.0.0.1:0");
        settings.put("plugin.discovery", "service_load"); // by default it scans every class of every jar
        settings.put("key.converter", PLAIN);
        settings.put("value.converter", PLAIN);
        settings.put("session.timeout.ms", "3000");
        settings.put("heartbeat.interval.ms", "500");
        settings.put("scheduled.rebalance.max.delay.ms", "0");
        for (String kind : new String[] {"config", "offset", "status"}) {
            settings.put(kind + ".storage.topic", name + "-" + kind);
            settings.put(kind + ".storage.replication.factor", "1");
        }
        settings.put("offset.storage.partitions", "1");
        settings.put("status.storage.partitions", "1");
        return settings;
    }

    private static Map<String, String> connector(String name, String file, String boundary) {
        Map<String, String> settings = new HashMap<>();
        settings.put("name", name);
        settings.put("connector.class", "org.apache.kafka.connect.file.FileStreamSourceConnector");
        settings.put("tasks.max", "1");
        settings.put("file", file);
        settings.put("topic", name + "-out");
        settings.put("exactly.once.support", "required");
        if (boundary.equals("poll")) {
            settings.put("transaction.boundary", "poll");
        } else {
            settings.put("transaction.boundary", "interval");
            settings.put("transaction.boundary.interval.ms", "3600000");
        }
        return settings;
    }
}
