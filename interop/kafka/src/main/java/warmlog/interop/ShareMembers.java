package warmlog.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a share group, a thread each, that consume a topic until their standard input ends.
 *
 * <p>Usage: ShareMembers BOOTSTRAP GROUP TOPIC MODE... with a mode per member. "explicit" accepts and commits; "implicit"
 * commits what was polled; "poll" acknowledges with the next poll; "renew" renews each record before it accepts it;
 * "release" gives every third record back at its first delivery.
 *
 * <p>Prints a line for each event, flushed before anything else happens: event, milliseconds, member, partition, offset,
 * delivery count. The events: "delivered", "accepting" (before that is sent), "releasing", "accepted" and "released"
 * (answered without an error); and "failed" with a text instead of partition, offset and count.
 */
public final class ShareMembers {
    private static final Duration POLL = Duration.ofMillis(500);
    private static final Duration COMMIT = Duration.ofSeconds(5);
    private static final int RELEASED_OF = 3;

    private static volatile boolean isStopping;

    private final String name;
    private final String mode;
    private final StringBuilder lines = new StringBuilder();
    private final Map<String, AcknowledgeType> sent = new HashMap<>();
    private final Map<String, Integer> counts = new HashMap<>();
    private final Set<String> renewed = new HashSet<>();

    private ShareMembers(String name, String mode) {
        this.name = name;
        this.mode = mode;
    }

    public static void main(String[] arguments) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 3; i < arguments.length; i++) {
            ShareMembers member = new ShareMembers(String.valueOf(i - 3), arguments[i]);
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
        settings.put("share.acknowledgement.mode", isImplicit() ? "implicit" : "explicit");
        settings.put("max.poll.records", 50);
        settings.put("reconnect.backoff.max.ms", 100);
        settings.put("request.timeout.ms", 5000);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings, bytes, bytes)) {
            consumer.setAcknowledgementCommitCallback(this::answered);
            consumer.subscribe(List.of(topic));
            while (!isStopping) {
                try {
                    turn(consumer);
                } catch (RuntimeException error) {
                    failed(error);
                }
                flush();
            }
        } catch (RuntimeException error) {
            failed(error);
        }
        flush();
    }

    private boolean isImplicit() {
        return mode.equals("implicit") || mode.equals("poll");
    }

    private void turn(KafkaShareConsumer<byte[], byte[]> consumer) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
        for (ConsumerRecord<byte[], byte[]> record : records) {
            int deliveries = record.deliveryCount().map(Short::intValue).orElse(-1);
            String key = record.partition() + " " + record.offset();
            boolean isRenewed = renewed.remove(key);
            if (!isRenewed) {
                event("delivered", key, deliveries);
            }
            AcknowledgeType type = AcknowledgeType.ACCEPT;
            if (mode.equals("renew") && !isRenewed) {
                type = AcknowledgeType.RENEW;
                renewed.add(key);
            } else if (mode.equals("release") && deliveries == 1 && record.offset() % RELEASED_OF == 0) {
                type = AcknowledgeType.RELEASE;
            }
            sent.put(key, type);
            counts.put(key, deliveries);
            if (type == AcknowledgeType.ACCEPT) {
                event("accepting", key, deliveries);
            } else if (type == AcknowledgeType.RELEASE) {
                event("releasing", key, deliveries);
            }
            if (!isImplicit()) {
                consumer.acknowledge(record, type);
            }
        }
        flush();
        if (!mode.equals("poll")) {
            consumer.commitSync(COMMIT);
        }
    }

    private void answered(Map<TopicIdPartition, Set<Long>> offsets, Exception error) {
        offsets.forEach((partition, ofPartition) -> ofPartition.forEach(offset -> {
            String key = partition.partition() + " " + offset;
            AcknowledgeType type = sent.get(key);
            if (error != null) {
                renewed.remove(key);
            } else if (type == AcknowledgeType.ACCEPT) {
                event("accepted", key, counts.get(key));
            } else if (type == AcknowledgeType.RELEASE) {
                event("released", key, counts.get(key));
            }
        }));
        if (error != null) {
            failed(error);
        }
        flush();
    }

    private void event(String event, String key, int deliveries) {
        lines.append(event).append(' ').append(System.currentTimeMillis()).append(' ').append(name).append(' ');
        lines.append(key).append(' ').append(deliveries).append('\n');
    }

    private void failed(Exception error) {
        String text = String.valueOf(error).replace('\n', ' ');
        lines.append("failed ").append(System.currentTimeMillis()).append(' ').append(name).append(' ');
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
