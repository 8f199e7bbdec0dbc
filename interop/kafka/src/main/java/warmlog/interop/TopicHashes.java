package warmlog.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;

/**
 * Hashes topics as Kafka's group coordinator does.
 *
 * <p>Each line of standard input is an array of topics, {"id", "name", "partitions", "racks"}, the racks of each
 * partition's replicas. For each line an array is printed: the hash of the group, then those of its topics in order.
 */
public final class TopicHashes {
    private static final ObjectMapper JSON = new ObjectMapper();

    private TopicHashes() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Long> hashes = new HashMap<>();
            List<Long> printed = new ArrayList<>();
            for (JsonNode topic : JSON.readTree(line)) {
                String name = topic.get("name").asText();
                long hash = Utils.computeTopicHash(name, image(topic));
                hashes.put(name, hash);
                printed.add(hash);
            }
            printed.add(0, Utils.computeGroupHash(hashes));
            System.out.println(printed);
        }
    }

    private static CoordinatorMetadataImage image(JsonNode topic) {
        Object metadata = proxy(CoordinatorMetadataImage.TopicMetadata.class, (name, argument) -> switch (name) {
            case "id" -> Uuid.fromString(topic.get("id").asText());
            case "name" -> topic.get("name").asText();
            case "partitionCount" -> topic.get("partitions").asInt();
            case "partitionRacks" -> racks(topic.get("racks").get((int) argument));
            default -> throw new UnsupportedOperationException(name);
        });
        return (CoordinatorMetadataImage) proxy(CoordinatorMetadataImage.class, (name, argument) -> Optional.of(metadata));
    }

    private static List<String> racks(JsonNode racks) {
        List<String> texts = new ArrayList<>();
        if (racks != null) {
            racks.forEach(rack -> texts.add(rack.asText()));
        }
        return texts;
    }

    private interface Answers {
        Object answer(String name, Object argument);
    }

    private static Object proxy(Class<?> type, Answers answers) {
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) ->
            answers.answer(method.getName(), arguments == null ? null : arguments[0]));
    }
}
