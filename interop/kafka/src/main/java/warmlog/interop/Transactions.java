package warmlog.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Reads records, writes each of them doubled, and commits the offsets with them, in transactions; then has a zombie fenced.
 *
 * <p>Usage: Transactions BOOTSTRAP LEVEL NAME, where LEVEL is that of transaction.version and NAME the prefix of topics and
 * ids. Prints what was seen as one line of JSON.
 */
public final class Transactions {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int RECORDS = 40;
    private static final int PARTITIONS = 3;
    private static final String FEATURE = "transaction.version";

    private final String bootstrap;
    private final Admin admin;
    private final String prefix;
    private final ObjectNode seen = JSON.createObjectNode();

    private Transactions(String bootstrap, Admin admin, String name) {
        this.bootstrap = bootstrap;
        this.admin = admin;
        this.prefix = name + "-";
    }

    public static void main(String[] arguments) throws Exception {
        short level = Short.parseShort(arguments[1]);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            setLevel(admin, level);
            Transactions transactions = new Transactions(arguments[0], admin, arguments[2]);
            transactions.run();
            System.out.println(JSON.writeValueAsString(transactions.seen));
        }
    }

    private static void setLevel(Admin admin, short level) throws Exception {
        FinalizedVersionRange range = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get(FEATURE);
        short now = range == null ? 0 : range.maxVersionLevel();
        if (now == level) {
            return;
        }
        FeatureUpdate.UpgradeType type = now < level ? FeatureUpdate.UpgradeType.UPGRADE : FeatureUpdate.UpgradeType.SAFE_DOWNGRADE;
        admin.updateFeatures(Map.of(FEATURE, new FeatureUpdate(level, type)), new UpdateFeaturesOptions()).all().get();
    }

    private void run() throws Exception {
        String in = prefix + "in";
        String out = prefix + "out";
        admin.createTopics(List.of(new NewTopic(in, PARTITIONS, (short) 1), new NewTopic(out, PARTITIONS, (short) 1))).all().get();
        fill(in);
        doubled(in, out);
        zombie(out);
        put("committed", values(out, "read_committed"));
        seen.put("all", values(out, "read_uncommitted").size());
        Map<TopicPartition, OffsetAndMetadata> offsets =
                admin.listConsumerGroupOffsets(prefix + "group").partitionsToOffsetAndMetadata().get();
        seen.put("offsets", offsets.values().stream().mapToLong(OffsetAndMetadata::offset).sum());
        TransactionDescription described =
                admin.describeTransactions(Set.of(prefix + "id")).description(prefix + "id").get();
        seen.put("state", described.state().toString());
        seen.put("epoch", described.producerEpoch());
    }

    /** Every fifth of the records is of a transaction that is aborted. */
    private void fill(String topic) {
        try (KafkaProducer<byte[], byte[]> producer = producer(prefix + "filler")) {
            producer.initTransactions();
            for (int i = 0; i < RECORDS; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, i % PARTITIONS, null, bytes("v" + i)));
                if (i % 5 == 4) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
    }

    private void doubled(String in, String out) {
        int expected = RECORDS - RECORDS / 5;
        int done = 0;
        int rounds = 0;
        try (KafkaProducer<byte[], byte[]> producer = producer(prefix + "id");
                KafkaConsumer<byte[], byte[]> consumer = consumer("read_committed", prefix + "group")) {
            producer.initTransactions();
            consumer.subscribe(List.of(in));
            while (done < expected) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(200)).forEach(records::add);
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    String text = new String(record.value(), StandardCharsets.UTF_8);
                    producer.send(new ProducerRecord<>(out, record.partition(), null, bytes(text + text)));
                    offsets.put(new TopicPartition(in, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                rounds++;
                if (rounds == 1) { // the first round is aborted, and its records are read again
                    producer.flush();
                    producer.abortTransaction();
                    consumer.assignment().forEach(partition -> consumer.seekToBeginning(List.of(partition)));
                } else {
                    producer.commitTransaction();
                    done += records.size();
                }
            }
        }
    }

    private void zombie(String out) {
        try (KafkaProducer<byte[], byte[]> zombie = producer(prefix + "zombie");
                KafkaProducer<byte[], byte[]> successor = producer(prefix + "zombie")) {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(out, 0, null, bytes("zombie")));
            zombie.flush();
            successor.initTransactions();
            try {
                zombie.commitTransaction();
                seen.put("zombie", "committed");
            } catch (RuntimeException refused) {
                seen.put("zombie", refused.getClass().getSimpleName());
            }
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(out, 0, null, bytes("successor")));
            successor.commitTransaction();
        }
    }

    private List<String> values(String topic, String isolation) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int i = 0; i < PARTITIONS; i++) {
            partitions.add(new TopicPartition(topic, i));
        }
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(isolation, null)) {
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < ends.get(partition))) {
                consumer.poll(Duration.ofMillis(200))
                        .forEach(record -> values.add(new String(record.value(), StandardCharsets.UTF_8)));
            }
        }
        values.sort(null);
        return values;
    }

    private void put(String name, List<String> values) {
        ArrayNode array = seen.putArray(name);
        values.forEach(array::add);
    }

    private KafkaProducer<byte[], byte[]> producer(String id) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", id, "linger.ms", 0);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private KafkaConsumer<byte[], byte[]> consumer(String isolation, String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("isolation.level", isolation);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (group != null) {
            settings.put("group.id", group);
        }
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
