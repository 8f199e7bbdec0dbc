package warmlog.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Fills a Kafka with the topics of the golden files.
 *
 * <p>Usage: Produce BOOTSTRAP all|killed. What is sent is the same each time (a seeded Random, fixed create times), so that only
 * ids, append times and what compressors make of it may differ between two runs.
 */
public final class Produce {
    /** 2023-11-14T22:13:20Z: create times begin here. */
    private static final long EPOCH_MS = 1_700_000_000_000L;

    /** Records sent before each flush: from one record a batch to many. */
    private static final int[] BATCH_COUNTS = {1, 2, 5, 9, 1, 16};

    private final String bootstrap;
    private final Admin admin;
    private final Random random = new Random(20260501);

    private Produce(String bootstrap, Admin admin) {
        this.bootstrap = bootstrap;
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            Produce produce = new Produce(arguments[0], admin);
            if (arguments[1].equals("killed")) {
                produce.killed();
            } else {
                produce.all();
            }
        }
    }

    private void killed() throws Exception {
        create("killed", 1, Map.of("segment.index.bytes", "2048"));
        fill("killed", "none", 24);
        create("killed-lz4", 1, Map.of("segment.index.bytes", "2048"));
        fill("killed-lz4", "lz4", 24);
    }

    private void all() throws Exception {
        create("plain", 1, Map.of("internal.segment.bytes", "8192"));
        fill("plain", "none", 36);
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            create(codec, 1, Map.of());
            fill(codec, codec, 24);
        }
        create("append-time", 1, Map.of("message.timestamp.type", "LogAppendTime"));
        fill("append-time", "none", 12);
        fill("append-time", "gzip", 12);
        create("sparse-index", 1, Map.of("index.interval.bytes", "4096", "internal.segment.bytes", "16384"));
        fill("sparse-index", "none", 36);
        create("index-full", 1, Map.of("segment.index.bytes", "96", "internal.segment.bytes", "1048576"));
        fill("index-full", "none", 24);
        create("empty", 1, Map.of());
        aged();
        keyed();
        idempotent();
        transactional();
        trimmed();
        compacted();
        committedOffsets();
    }

    /** Rolled by the records' own times: a minute a segment, 25 seconds between batches, now and then one that comes late. */
    private void aged() throws Exception {
        create("aged", 1, Map.of("segment.ms", "60000", "internal.segment.bytes", "1048576"));
        try (KafkaProducer<byte[], byte[]> producer = producer("none", Map.of())) {
            for (int batch = 0; batch < 16; batch++) {
                long late = batch % 5 == 4 ? 90_000 : 0;
                long timestamp = EPOCH_MS + batch * 25_000L - late;
                sendAll(producer, List.of(record("aged", null, timestamp, bytes("batch-" + batch), bytes("aged"))));
            }
        }
    }

    /** No partition given: which key lands where is the default partitioner's choice. */
    private void keyed() throws Exception {
        create("keyed", 4, Map.of());
        try (KafkaProducer<byte[], byte[]> producer = producer("none", Map.of())) {
            for (int i = 0; i < 64; i++) {
                byte[] key = i < 32 ? bytes("key-" + i) : randomBytes(i - 31);
                sendAll(producer, List.of(record("keyed", null, EPOCH_MS + i, key, bytes("value-" + i))));
            }
        }
    }

    private void idempotent() throws Exception {
        create("idempotent", 1, Map.of());
        Map<String, String> settings = Map.of("enable.idempotence", "true", "acks", "all");
        try (KafkaProducer<byte[], byte[]> first = producer("none", settings);
                KafkaProducer<byte[], byte[]> second = producer("zstd", settings)) {
            for (int batch = 0; batch < 18; batch++) {
                sendAll(batch % 3 == 2 ? second : first, batch("idempotent", batch));
            }
        }
    }

    /** Two transactional producers and a plain one in turn; every second transaction is aborted, one pair overlaps. */
    private void transactional() throws Exception {
        create("transactional", 1, Map.of());
        try (KafkaProducer<byte[], byte[]> plain = producer("none", Map.of());
                KafkaProducer<byte[], byte[]> first = producer("none", Map.of("transactional.id", "first", "acks", "all"));
                KafkaProducer<byte[], byte[]> second = producer("lz4", Map.of("transactional.id", "second", "acks", "all"))) {
            first.initTransactions();
            second.initTransactions();
            for (int batch = 0; batch < 12; batch++) {
                boolean overlapping = batch == 7;
                if (overlapping) {
                    second.beginTransaction();
                    sendAll(second, batch("transactional", batch));
                }
                first.beginTransaction();
                sendAll(first, batch("transactional", batch));
                sendAll(plain, batch("transactional", batch + 1));
                sendAll(first, batch("transactional", batch + 2));
                if (batch % 2 == 0) {
                    first.commitTransaction();
                } else {
                    first.abortTransaction();
                }
                if (overlapping) {
                    second.abortTransaction();
                }
            }
        }
    }

    /** The log start offset lies in the middle of a segment, and whole segments before it are gone. */
    private void trimmed() throws Exception {
        create("trimmed", 1, Map.of("file.delete.delay.ms", "0"));
        fill("trimmed", "none", 24);
        admin.deleteRecords(Map.of(new TopicPartition("trimmed", 0), RecordsToDelete.beforeOffset(77))).all().get();
    }

    /** Few keys, many records: the cleaner leaves gaps between offsets, and batches whose last record is gone. */
    private void compacted() throws Exception {
        create("compacted", 1, Map.of(
            "cleanup.policy", "compact", "min.cleanable.dirty.ratio", "0.01", "delete.retention.ms", "100000000000",
            "file.delete.delay.ms", "0"));
        try (KafkaProducer<byte[], byte[]> producer = producer("none", Map.of())) {
            for (int batch = 0; batch < 40; batch++) {
                List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
                for (int i = 0; i < 8; i++) {
                    byte[] value = random.nextInt(8) == 0 ? null : text();
                    long timestamp = EPOCH_MS + batch * 1000L + i;
                    records.add(record("compacted", 0, timestamp, bytes("key-" + random.nextInt(24)), value));
                }
                sendAll(producer, records);
            }
        }
    }

    private void committedOffsets() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", "golden-group");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            TopicPartition plain = new TopicPartition("plain", 0);
            consumer.assign(List.of(plain));
            consumer.commitSync(Map.of(plain, new OffsetAndMetadata(42, "a note")));
        }
    }

    private void create(String topic, int partitions, Map<String, String> settings) throws Exception {
        Map<String, String> all = new HashMap<>(Map.of(
            "internal.segment.bytes", "4096", "index.interval.bytes", "512", "segment.index.bytes", "4096", "retention.ms", "-1"));
        all.putAll(settings);
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(all))).all().get();
    }

    private KafkaProducer<byte[], byte[]> producer(String codec, Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.put("compression.type", codec);
        all.put("acks", "1");
        all.put("enable.idempotence", String.valueOf(settings.containsKey("transactional.id")));
        // A batch is what was sent before a flush, never what the clock made of it.
        all.put("linger.ms", "60000");
        all.put("batch.size", "4000");
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private void fill(String topic, String codec, int batches) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(codec, Map.of())) {
            for (int batch = 0; batch < batches; batch++) {
                sendAll(producer, batch(topic, batch));
            }
        }
    }

    private static void sendAll(KafkaProducer<byte[], byte[]> producer, List<ProducerRecord<byte[], byte[]>> records)
            throws ExecutionException, InterruptedException {
        List<Future<?>> sent = new ArrayList<>();
        for (ProducerRecord<byte[], byte[]> record : records) {
            sent.add(producer.send(record));
        }
        producer.flush();
        for (Future<?> one : sent) {
            one.get();
        }
    }

    /** Every shape of record: no key, empty key, no value, empty value, headers with and without values, times out of order. */
    private List<ProducerRecord<byte[], byte[]>> batch(String topic, int number) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int i = 0; i < BATCH_COUNTS[number % BATCH_COUNTS.length]; i++) {
            long timestamp = EPOCH_MS + number * 1000L + (i * 37) % 101 - (number % 4 == 3 ? 1500 : 0);
            byte[] key = switch (random.nextInt(5)) {
                case 0 -> null;
                case 1 -> new byte[0];
                default -> bytes("key-" + random.nextInt(20));
            };
            byte[] value = switch (random.nextInt(12)) {
                case 0 -> null;
                case 1 -> new byte[0];
                case 2 -> randomBytes(random.nextInt(400));
                default -> text();
            };
            ProducerRecord<byte[], byte[]> record = record(topic, 0, timestamp, key, value);
            for (int header = random.nextInt(12) - 9; header > 0; header--) {
                record.headers().add(new RecordHeader("header-é-" + header, random.nextBoolean() ? null : randomBytes(header)));
            }
            records.add(record);
        }
        return records;
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, Integer partition, long timestamp, byte[] key, byte[] value) {
        return new ProducerRecord<>(topic, partition, timestamp, key, value);
    }

    private byte[] text() {
        StringBuilder text = new StringBuilder();
        for (int words = 1 + random.nextInt(14); words > 0; words--) {
            text.append("word-").append(random.nextInt(40)).append(' ');
        }
        return bytes(text.toString());
    }

    private byte[] randomBytes(int size) {
        byte[] bytes = new byte[size];
        random.nextBytes(bytes);
        return bytes;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
