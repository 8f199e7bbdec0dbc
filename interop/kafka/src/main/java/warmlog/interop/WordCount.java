package warmlog.interop;

import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the words of a topic exactly once with Kafka Streams, until its standard input ends.
 *
 * <p>Usage: WordCount BOOTSTRAP NAME STATE_DIRECTORY. Reads lines from NAME-in and writes each word with its new count, as
 * text, to NAME-out. Prints "running" when it is, and "failed" if Streams gave up.
 */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> lines = builder.stream(name + "-in", Consumed.with(Serdes.String(), Serdes.String()));
        lines.flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(name + "-out", Produced.with(Serdes.String(), Serdes.String()));

        CountDownLatch ended = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings(arguments[0], name, arguments[2]))) {
            streams.setStateListener((state, before) -> {
                if (state == KafkaStreams.State.RUNNING) {
                    System.out.println("running");
                } else if (state == KafkaStreams.State.ERROR) {
                    System.out.println("failed");
                    ended.countDown();
                }
            });
            streams.start();
            Thread input = new Thread(() -> {
                try {
                    System.in.transferTo(java.io.OutputStream.nullOutputStream());
                } catch (java.io.IOException closed) {
                    // as good as its end
                }
                ended.countDown();
            });
            input.setDaemon(true);
            input.start();
            ended.await();
        }
    }

    private static Properties settings(String bootstrap, String name, String directory) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, name);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, directory);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0); // each new count is written
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 10_000);
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 2_000);
        settings.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 200);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        return settings;
    }
}
