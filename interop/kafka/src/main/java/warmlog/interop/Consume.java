package warmlog.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Prints what Kafka's Java consumer sees: one line of JSON for each partition, from its first to its last record.
 *
 * <p>Usage: Consume BOOTSTRAP read_uncommitted|read_committed TOPIC... Bytes are base64, null stays null. CRCs are checked.
 */
public final class Consume {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Consume() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", arguments[1]);
        settings.put("check.crcs", "true");
        settings.put("auto.offset.reset", "none");
        settings.put("enable.auto.commit", "false");
        settings.put("allow.auto.create.topics", "false");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            for (int i = 2; i < arguments.length; i++) {
                for (TopicPartition partition : partitionsOf(consumer, arguments[i])) {
                    System.out.println(JSON.writeValueAsString(everything(consumer, partition)));
                }
            }
        }
    }

    private static List<TopicPartition> partitionsOf(KafkaConsumer<?, ?> consumer, String topic) {
        List<TopicPartition> partitions = new ArrayList<>();
        consumer.partitionsFor(topic).forEach(info -> partitions.add(new TopicPartition(topic, info.partition())));
        partitions.sort((a, b) -> Integer.compare(a.partition(), b.partition()));
        return partitions;
    }

    private static ObjectNode everything(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
        List<TopicPartition> one = List.of(partition);
        long start = consumer.beginningOffsets(one).get(partition);
        long end = consumer.endOffsets(one).get(partition);
        ObjectNode seen = JSON.createObjectNode();
        seen.put("topic", partition.topic());
        seen.put("partition", partition.partition());
        seen.put("log_start_offset", start);
        seen.put("end_offset", end);
        ArrayNode records = seen.putArray("records");
        consumer.assign(one);
        consumer.seek(partition, start);
        // The position, not the last record, tells the end: control batches have offsets and no records.
        while (consumer.position(partition) < end) {
            consumer.poll(Duration.ofMillis(200)).forEach(record -> records.add(described(record)));
        }
        return seen;
    }

    private static ObjectNode described(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode described = JSON.createObjectNode();
        described.put("offset", record.offset());
        described.put("timestamp", record.timestamp());
        described.put("timestamp_type", record.timestampType().name);
        described.put("key", base64(record.key()));
        described.put("value", base64(record.value()));
        ArrayNode headers = described.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(base64(header.value()));
        }
        return described;
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
