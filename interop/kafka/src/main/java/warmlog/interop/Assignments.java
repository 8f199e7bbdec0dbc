package warmlog.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.SimpleAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Assigns partitions with Kafka's assignors.
 *
 * <p>Each line of standard input is {"assignor", "topics": {id: partitions}, "members": {id: {"topics": [ids],
 * "owned": {topic id: [partitions]}, "instance": id or null}}, "times"}. For each line {"ns", "members": {id: {topic
 * id: [partitions]}}} is printed; "ns" is the least time of "times" (default 1) runs.
 */
public final class Assignments {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Assignments() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(assigned(JSON.readTree(line)));
        }
    }

    private static ObjectNode assigned(JsonNode asked) {
        PartitionAssignor assignor = switch (asked.get("assignor").asText()) {
            case "range" -> new RangeAssignor();
            case "simple" -> new SimpleAssignor();
            default -> new UniformAssignor();
        };
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        asked.get("members").fields().forEachRemaining(entry -> {
            JsonNode member = entry.getValue();
            Set<Uuid> topics = new LinkedHashSet<>();
            member.get("topics").forEach(topic -> topics.add(Uuid.fromString(topic.asText())));
            Map<Uuid, Set<Integer>> owned = new LinkedHashMap<>();
            member.get("owned").fields().forEachRemaining(topic -> {
                Uuid id = Uuid.fromString(topic.getKey());
                topic.getValue().forEach(partition -> {
                    owned.computeIfAbsent(id, none -> new LinkedHashSet<>()).add(partition.asInt());
                    owners.computeIfAbsent(id, none -> new HashMap<>()).put(partition.asInt(), entry.getKey());
                });
            });
            JsonNode instance = member.get("instance");
            Optional<String> instanceId =
                instance == null || instance.isNull() ? Optional.empty() : Optional.of(instance.asText());
            subscriptions.add(topics);
            members.put(entry.getKey(), new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), instanceId, topics, new Assignment(Collections.unmodifiableMap(owned))));
        });
        SubscriptionType type =
            subscriptions.size() > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS;
        Describer describer = new Describer(asked.get("topics"));
        long least = Long.MAX_VALUE;
        GroupAssignment made = null;
        for (int time = asked.path("times").asInt(1); time > 0; time--) {
            long begun = System.nanoTime();
            made = assignor.assign(new GroupSpecImpl(members, type, owners), describer);
            least = Math.min(least, System.nanoTime() - begun);
        }
        ObjectNode printed = JSON.createObjectNode().put("ns", least);
        ObjectNode all = printed.putObject("members");
        made.members().forEach((id, assignment) -> {
            ObjectNode topics = all.putObject(id);
            assignment.partitions().forEach((topic, partitions) -> {
                ArrayNode numbers = topics.putArray(topic.toString());
                partitions.stream().sorted().forEach(numbers::add);
            });
        });
        return printed;
    }

    private static final class Describer implements SubscribedTopicDescriber {
        private final Map<Uuid, Integer> counts = new HashMap<>();

        Describer(JsonNode topics) {
            topics.fields().forEachRemaining(
                topic -> counts.put(Uuid.fromString(topic.getKey()), topic.getValue().asInt()));
        }

        @Override
        public int numPartitions(Uuid topicId) {
            return counts.getOrDefault(topicId, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            return Set.of();
        }
    }
}
