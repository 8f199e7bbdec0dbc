package warmlog.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumes a topic as a member of a share group until nothing has come for some time since the last delivery, or for a
 * minute since the start, and prints each delivery.
 *
 * <p>Usage: ShareConsume BOOTSTRAP GROUP TOPIC IDLE_MS [SETTING=VALUE...]. What is done with a record is its value up
 * to the first digit: "accept", "reject", "release" (each time), "once" (released once, then accepted) or "renew"
 * (renewed, then accepted). Prints a line of JSON: deliveries as [partition, offset, value, delivery count].
 */
public final class ShareConsume {
    // A group's first member may have to wait for its second heartbeat, until the partitions have a state.
    private static final long FIRST_DELIVERY_MS = 60_000;

    private ShareConsume() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        long idle = Long.parseLong(arguments[3]);
        for (int i = 4; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        ObjectMapper json = new ObjectMapper();
        ObjectNode seen = json.createObjectNode();
        ArrayNode deliveries = seen.putArray("deliveries");
        ArrayNode errors = seen.putArray("errors");
        StringDeserializer strings = new StringDeserializer();
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings, strings, strings)) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                if (error != null) {
                    errors.add(error.toString());
                }
            });
            consumer.subscribe(List.of(arguments[2]));
            Map<String, Integer> known = new HashMap<>();
            long end = System.currentTimeMillis() + FIRST_DELIVERY_MS;
            while (System.currentTimeMillis() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    end = System.currentTimeMillis() + idle;
                    String value = String.valueOf(record.value());
                    deliveries.addArray().add(record.partition()).add(record.offset()).add(value)
                        .add(record.deliveryCount().map(Short::intValue).orElse(-1));
                    int times = known.merge(record.partition() + "-" + record.offset(), 1, Integer::sum);
                    AcknowledgeType type = typeFor(value.replaceAll("[0-9].*", ""), times);
                    consumer.acknowledge(record, type);
                }
                consumer.commitSync(Duration.ofSeconds(20));
            }
        }
        System.out.println(json.writeValueAsString(seen));
    }

    private static AcknowledgeType typeFor(String action, int times) {
        switch (action) {
            case "reject":
                return AcknowledgeType.REJECT;
            case "release":
                return AcknowledgeType.RELEASE;
            case "once":
                return times == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            case "renew":
                return times == 1 ? AcknowledgeType.RENEW : AcknowledgeType.ACCEPT;
            default:
                return AcknowledgeType.ACCEPT;
        }
    }
}
