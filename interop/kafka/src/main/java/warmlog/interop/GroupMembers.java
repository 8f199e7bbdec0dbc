package warmlog.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a consumer group (KIP-848), a thread each, that consume a topic until their standard input ends.
 *
 * <p>Usage: GroupMembers BOOTSTRAP GROUP TOPIC MEMBERS. Prints a line for each event, flushed before anything else
 * happens: event, microseconds of the machine's monotonic clock, member, partition, offset. The events: "assigned",
 * "revoked" and "lost" (with offset -1), "consumed", "committed" (answered without an error, with the next offset); and
 * "failed" with a text instead of partition and offset.
 */
public final class GroupMembers {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration COMMIT = Duration.ofSeconds(5);

    private static volatile boolean isStopping;

    private final String name;
    private final StringBuilder lines = new StringBuilder();
    private final Map<TopicPartition, OffsetAndMetadata> consumed = new HashMap<>();

    private GroupMembers(String name) {
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(arguments[3]); i++) {
            GroupMembers member = new GroupMembers(String.valueOf(i));
            Thread thread = new Thread(() -> member.run(arguments[0], arguments[1], arguments[2]));
            thread.start();
            threads.add(thread);
        }
        while (System.in.read() >= 0) {
            continue;
        }
        isStopping = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void run(String bootstrap, String group, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("group.protocol", "consumer");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", 50);
        settings.put("reconnect.backoff.max.ms", 100);
        settings.put("request.timeout.ms", 5000);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(topic), new Listener(consumer));
            while (!isStopping) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    TopicPartition partition = new TopicPartition(record.topic(), record.partition());
                    consumed.put(partition, new OffsetAndMetadata(record.offset() + 1));
                    event("consumed", partition, record.offset());
                }
                flush();
                commit(consumer);
            }
        } catch (RuntimeException error) {
            failed(error);
        }
        flush();
    }

    private void commit(KafkaConsumer<byte[], byte[]> consumer) {
        if (consumed.isEmpty()) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(consumed);
        try {
            consumer.commitSync(offsets, COMMIT);
            offsets.forEach((partition, offset) -> event("committed", partition, offset.offset()));
            offsets.forEach(consumed::remove);
        } catch (RuntimeException error) {
            failed(error);
        }
        flush();
    }

    private final class Listener implements ConsumerRebalanceListener {
        private final KafkaConsumer<byte[], byte[]> consumer;

        private Listener(KafkaConsumer<byte[], byte[]> consumer) {
            this.consumer = consumer;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(partition -> event("assigned", partition, -1));
            flush();
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            commit(consumer);
            end("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            end("lost", partitions);
        }

        private void end(String event, Collection<TopicPartition> partitions) {
            partitions.forEach(consumed::remove);
            partitions.forEach(partition -> event(event, partition, -1));
            flush();
        }
    }

    private void event(String event, TopicPartition partition, long offset) {
        lines.append(event).append(' ').append(System.nanoTime() / 1000).append(' ').append(name).append(' ');
        lines.append(partition.partition()).append(' ').append(offset).append('\n');
    }

    private void failed(Exception error) {
        String text = String.valueOf(error).replace('\n', ' ');
        lines.append("failed ").append(System.nanoTime() / 1000).append(' ').append(name).append(' ');
        lines.append(text, 0, Math.min(text.length(), 200)).append('\n');
    }

    private void flush() {
        if (lines.length() > 0) {
            synchronized (System.out) {
                System.out.print(lines);
                System.out.flush();
            }
            lines.setLength(0);
        }
    }
}
