package warmlog.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.coordinator.group.api.streams.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.streams.assignor.TopologyDescriber;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentConfigsImpl;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberMetadataAndStateImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;

/**
 * Assigns tasks with Kafka's assignor. Compiled as it is started, since its interfaces are new in 4.4.
 *
 * <p>Each line of standard input is {"standby_replicas", "subtopologies": {id: [tasks, whether it has a state]},
 * "members": {id: {"process", "active": {subtopology: [partitions]}, "standby", "offsets": {subtopology: {partition:
 * offset}}}}, "times"}. For each line {"ns", "members": {id: {"active", "standby"}}} is printed; "ns" is the least time
 * of "times" (default 1) runs.
 */
public final class TaskAssignments {
    private static final ObjectMapper JSON = new ObjectMapper();

    private TaskAssignments() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(assigned(JSON.readTree(line)));
        }
    }

    private static ObjectNode assigned(JsonNode asked) {
        Map<String, MemberMetadataAndStateImpl> members = new LinkedHashMap<>();
        asked.get("members").fields().forEachRemaining(entry -> {
            JsonNode member = entry.getValue();
            members.put(entry.getKey(), new MemberMetadataAndStateImpl(
                Optional.empty(), Optional.empty(), member.get("process").asText(), Map.of(),
                tasks(member.get("active")), tasks(member.get("standby")), Map.of(),
                offsets(member.get("offsets")), Map.of()));
        });
        AssignmentConfigsImpl settings =
            AssignmentConfigsImpl.DEFAULT.withNumStandbyReplicas(asked.get("standby_replicas").asInt());
        Describer describer = new Describer(asked.get("subtopologies"));
        long least = Long.MAX_VALUE;
        GroupAssignment made = null;
        for (int time = asked.path("times").asInt(1); time > 0; time--) {
            long begun = System.nanoTime();
            made = new StickyTaskAssignor().assign(new GroupSpecImpl(members, settings), describer);
            least = Math.min(least, System.nanoTime() - begun);
        }
        ObjectNode printed = JSON.createObjectNode().put("ns", least);
        ObjectNode all = printed.putObject("members");
        made.members().forEach((id, assignment) -> {
            ObjectNode member = all.putObject(id);
            print(member.putObject("active"), assignment.activeTasks());
            print(member.putObject("standby"), assignment.standbyTasks());
        });
        return printed;
    }

    private static Map<String, Set<Integer>> tasks(JsonNode printed) {
        Map<String, Set<Integer>> tasks = new HashMap<>();
        printed.fields().forEachRemaining(entry -> {
            Set<Integer> partitions = new HashSet<>();
            entry.getValue().forEach(partition -> partitions.add(partition.asInt()));
            tasks.put(entry.getKey(), partitions);
        });
        return tasks;
    }

    private static Map<String, Map<Integer, Long>> offsets(JsonNode printed) {
        Map<String, Map<Integer, Long>> offsets = new HashMap<>();
        printed.fields().forEachRemaining(entry -> {
            Map<Integer, Long> partitions = new HashMap<>();
            entry.getValue().fields().forEachRemaining(
                offset -> partitions.put(Integer.valueOf(offset.getKey()), offset.getValue().asLong()));
            offsets.put(entry.getKey(), partitions);
        });
        return offsets;
    }

    private static void print(ObjectNode printed, Map<String, Set<Integer>> tasks) {
        tasks.forEach((subtopology, partitions) -> {
            ArrayNode numbers = printed.putArray(subtopology);
            partitions.stream().sorted().forEach(numbers::add);
        });
    }

    private static final class Describer implements TopologyDescriber {
        private final Map<String, JsonNode> subtopologies = new LinkedHashMap<>();

        Describer(JsonNode printed) {
            printed.fields().forEachRemaining(entry -> subtopologies.put(entry.getKey(), entry.getValue()));
        }

        @Override
        public List<String> subtopologies() {
            return List.copyOf(subtopologies.keySet());
        }

        @Override
        public int maxNumInputPartitions(String subtopology) {
            return subtopologies.get(subtopology).get(0).asInt();
        }

        @Override
        public boolean isStateful(String subtopology) {
            return subtopologies.get(subtopology).get(1).asBoolean();
        }
    }
}
