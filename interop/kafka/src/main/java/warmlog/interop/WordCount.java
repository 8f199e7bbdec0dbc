package warmlog.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.OutputStream;
import java.util.Arrays;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.StreamsMetadata;
import org.apache.kafka.streams.TaskMetadata;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of a topic exactly once with Kafka Streams, until its standard input ends.
 *
 * <p>Usage: WordCount BOOTSTRAP NAME STATE_DIRECTORY [SETTING=VALUE...]. Reads lines from NAME-in and writes each word
 * with its new count, as text, to NAME-out. The setting "store" is "memory" (the default) or "rocksdb"; the others are
 * Streams'. Prints lines of JSON: {"state"} as it changes, "ERROR" if Streams gave up; {"active", "standby"} as the
 * tasks change; {"endpoints": {host and port: {"active", "standby"}}} as the partitions change that instances with the
 * setting application.server have; {"restored": records, "store"}; {"error"}.
 */
public final class WordCount {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int LOOK_MS = 100;

    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        Properties settings = settings(arguments);
        CountDownLatch ended = new CountDownLatch(1);
        boolean onDisk = "rocksdb".equals(settings.remove("store"));
        try (KafkaStreams streams = new KafkaStreams(topology(name, onDisk).build(settings), settings)) {
            streams.setStateListener((state, before) -> {
                print(JSON.createObjectNode().put("state", state.name()));
                if (state == KafkaStreams.State.ERROR) {
                    ended.countDown();
                }
            });
            streams.setUncaughtExceptionHandler(error -> {
                print(JSON.createObjectNode().put("error", error.toString()));
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.setGlobalStateRestoreListener(new Restores());
            streams.start();
            Thread input = new Thread(() -> {
                try {
                    System.in.transferTo(OutputStream.nullOutputStream());
                } catch (IOException closed) {
                    // as good as its end
                }
                ended.countDown();
            });
            input.setDaemon(true);
            input.start();
            ObjectNode tasks = null;
            ObjectNode endpoints = JSON.createObjectNode();
            while (!ended.await(LOOK_MS, TimeUnit.MILLISECONDS)) {
                if (streams.state().isRunningOrRebalancing()) {
                    tasks = printIfNew(tasks(streams), tasks);
                    endpoints = printIfNew(endpoints(streams), endpoints);
                }
            }
        }
    }

    private static StreamsBuilder topology(String name, boolean onDisk) {
        StreamsBuilder builder = new StreamsBuilder();
        KeyValueBytesStoreSupplier store =
                onDisk ? Stores.persistentKeyValueStore("counts") : Stores.inMemoryKeyValueStore("counts");
        KStream<String, String> lines = builder.stream(name + "-in", Consumed.with(Serdes.String(), Serdes.String()));
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(store).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(name + "-out", Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    private static ObjectNode printIfNew(ObjectNode line, ObjectNode before) {
        if (!line.isEmpty() && !line.equals(before)) {
            print(line);
        }
        return line;
    }

    private static ObjectNode endpoints(KafkaStreams streams) {
        ObjectNode line = JSON.createObjectNode();
        for (StreamsMetadata client : streams.metadataForAllStreamsClients()) {
            ObjectNode partitions = line.withObject("/endpoints").putObject(client.host() + ":" + client.port());
            put(partitions.putArray("active"), client.topicPartitions());
            put(partitions.putArray("standby"), client.standbyTopicPartitions());
        }
        return line;
    }

    private static void put(ArrayNode array, Set<?> values) {
        values.stream().map(Object::toString).sorted().forEach(array::add);
    }

    private static ObjectNode tasks(KafkaStreams streams) {
        ObjectNode tasks = JSON.createObjectNode();
        Set<String> active = new TreeSet<>();
        Set<String> standby = new TreeSet<>();
        for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
            for (TaskMetadata task : thread.activeTasks()) {
                active.add(task.taskId().toString());
            }
            for (TaskMetadata task : thread.standbyTasks()) {
                standby.add(task.taskId().toString());
            }
        }
        put(tasks.putArray("active"), active);
        put(tasks.putArray("standby"), standby);
        return tasks;
    }

    private static synchronized void print(ObjectNode line) {
        System.out.println(line);
    }

    private static Properties settings(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // each new count is written
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 2_000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 200);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        for (int i = 3; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        return settings;
    }

    private static final class Restores implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition partition, String store, long first, long end) {}

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long last, long count) {}

        @Override
        public void onRestoreEnd(TopicPartition partition, String store, long total) {
            print(JSON.createObjectNode().put("restored", total).put("store", store));
        }
    }
}
