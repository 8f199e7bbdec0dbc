package warmlog.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.generated.StreamsGroupTopologyValueJsonConverter;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredInternalTopic;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredTopology;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.slf4j.helpers.NOPLogger;

/**
 * Configures topologies of Kafka Streams as Kafka's coordinator does. Compiled as it is started, since its parameters
 * are those of 4.4.
 *
 * <p>Each line of standard input is {"topology": a StreamsGroupTopologyValue, "topics": {name: partitions}}. For each
 * line one is printed: {"failed": simple name of an exception}, or {"status", "detail", "tasks": {subtopology: tasks},
 * "internal": {topic: partitions}, "missing": {topic: [partitions, replication factor]}}.
 */
public final class Topologies {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Topologies() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(configured(JSON.readTree(line)));
        }
    }

    private static ObjectNode configured(JsonNode asked) {
        ConfiguredTopology made;
        try {
            StreamsTopology topology = StreamsTopology.fromRecord(
                StreamsGroupTopologyValueJsonConverter.read(asked.get("topology"), (short) 0));
            made = InternalTopicManager.configureTopics(
                NOPLogger.NOP_LOGGER, "group", "member", 0, topology, image(asked.get("topics")), Time.SYSTEM);
        } catch (RuntimeException error) {
            return JSON.createObjectNode().put("failed", error.getClass().getSimpleName());
        }
        ObjectNode printed = JSON.createObjectNode();
        made.topicConfigurationException().ifPresent(error ->
            printed.put("status", error.status().code()).put("detail", error.getMessage()));
        ObjectNode tasks = printed.putObject("tasks");
        Map<String, Integer> internal = new TreeMap<>();
        made.subtopologies().ifPresent(all -> all.forEach((id, subtopology) -> {
            tasks.put(id, subtopology.numberOfTasks());
            for (ConfiguredInternalTopic topic : subtopology.repartitionSourceTopics().values()) {
                internal.put(topic.name(), topic.numberOfPartitions());
            }
            for (ConfiguredInternalTopic topic : subtopology.stateChangelogTopics().values()) {
                internal.put(topic.name(), topic.numberOfPartitions());
            }
        }));
        ObjectNode partitions = printed.putObject("internal");
        internal.forEach(partitions::put);
        ObjectNode missing = printed.putObject("missing");
        new TreeMap<>(made.internalTopicsToBeCreated()).forEach((name, topic) -> {
            ArrayNode pair = missing.putArray(name);
            pair.add(topic.numPartitions()).add(topic.replicationFactor());
        });
        return printed;
    }

    /** Returns topics with these numbers of partitions; nothing else of them is asked for. */
    private static CoordinatorMetadataImage image(JsonNode topics) {
        return proxy(CoordinatorMetadataImage.class, (name, argument) -> {
            JsonNode partitions = topics.get((String) argument);
            return partitions == null
                ? Optional.empty()
                : Optional.of(proxy(CoordinatorMetadataImage.TopicMetadata.class, (asked, none) -> partitions.asInt()));
        });
    }

    private static <T> T proxy(Class<T> type, Answer answer) {
        return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, given) ->
            answer.to(method.getName(), given == null ? null : given[0])));
    }

    private interface Answer {
        Object to(String method, Object argument);
    }
}
