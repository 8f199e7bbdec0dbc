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
import java.util.Map;
import java.util.Set;
import org.apache.kafka.coordinator.group.streams.CurrentAssignmentBuilder;
import org.apache.kafka.coordinator.group.streams.MemberState;
import org.apache.kafka.coordinator.group.streams.StreamsGroupMember;
import org.apache.kafka.coordinator.group.streams.TasksTuple;
import org.apache.kafka.coordinator.group.streams.TasksTupleWithEpochs;

/**
 * Moves members of streams groups towards their targets with Kafka's rules. Compiled as it is started, since they are
 * others than in 4.3.
 *
 * <p>Each line of standard input is {"epoch", "state", "process", "assigned", "to_revoke", "target_epoch", "target",
 * "owned", "active", "standby", "warmup"}. "assigned" and "to_revoke" are {"active": {subtopology: {partition: epoch}},
 * "standby": {subtopology: [partitions]}, "warmup"}, "target" and "owned" (may be null) have lists for "active", too. The
 * last three are the processes that have a task: {subtopology: {partition: process}}, of the last two lists of them. For
 * each line {"epoch", "previous", "state", "assigned", "to_revoke"} is printed.
 */
public final class TaskSteps {
    private static final ObjectMapper JSON = new ObjectMapper();

    private TaskSteps() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(stepped(JSON.readTree(line)));
        }
    }

    private static ObjectNode stepped(JsonNode asked) {
        int epoch = asked.get("epoch").asInt();
        StreamsGroupMember member = StreamsGroupMember.Builder.withDefaults("member")
            .setState(MemberState.fromValue((byte) asked.get("state").asInt()))
            .setMemberEpoch(epoch)
            .setPreviousMemberEpoch(epoch)
            .setProcessId(asked.get("process").asText())
            .setAssignedTasks(held(asked.get("assigned")))
            .setTasksPendingRevocation(held(asked.get("to_revoke")))
            .build();
        StreamsGroupMember after = new CurrentAssignmentBuilder(member)
            .withTargetAssignment(asked.get("target_epoch").asInt(), tasks(asked.get("target")))
            .withCurrentActiveTaskProcessId((subtopology, partition) -> {
                JsonNode process = asked.get("active").path(subtopology).path(String.valueOf(partition));
                return process.isMissingNode() ? null : process.asText();
            })
            .withCurrentStandbyTaskProcessIds((subtopology, partition) ->
                texts(asked.get("standby").path(subtopology).path(String.valueOf(partition))))
            .withCurrentWarmupTaskProcessIds((subtopology, partition) ->
                texts(asked.get("warmup").path(subtopology).path(String.valueOf(partition))))
            .withOwnedAssignment(asked.get("owned").isNull() ? null : tasks(asked.get("owned")))
            .build();
        ObjectNode printed = JSON.createObjectNode()
            .put("epoch", after.memberEpoch())
            .put("previous", after.previousMemberEpoch())
            .put("state", after.state().value());
        print(printed.putObject("assigned"), after.assignedTasks());
        print(printed.putObject("to_revoke"), after.tasksPendingRevocation());
        return printed;
    }

    private static TasksTupleWithEpochs held(JsonNode printed) {
        Map<String, Map<Integer, Integer>> active = new HashMap<>();
        printed.get("active").fields().forEachRemaining(entry -> {
            Map<Integer, Integer> epochs = new HashMap<>();
            entry.getValue().fields().forEachRemaining(
                each -> epochs.put(Integer.valueOf(each.getKey()), each.getValue().asInt()));
            active.put(entry.getKey(), epochs);
        });
        return new TasksTupleWithEpochs(active, partitions(printed.get("standby")), partitions(printed.get("warmup")));
    }

    private static TasksTuple tasks(JsonNode printed) {
        return new TasksTuple(
            partitions(printed.get("active")), partitions(printed.get("standby")), partitions(printed.get("warmup")));
    }

    private static Map<String, Set<Integer>> partitions(JsonNode printed) {
        Map<String, Set<Integer>> tasks = new HashMap<>();
        printed.fields().forEachRemaining(entry -> {
            Set<Integer> numbers = new HashSet<>();
            entry.getValue().forEach(number -> numbers.add(number.asInt()));
            tasks.put(entry.getKey(), numbers);
        });
        return tasks;
    }

    private static Set<String> texts(JsonNode printed) {
        Set<String> texts = new HashSet<>();
        printed.forEach(text -> texts.add(text.asText()));
        return texts;
    }

    private static void print(ObjectNode printed, TasksTupleWithEpochs tasks) {
        ObjectNode active = printed.putObject("active");
        tasks.activeTasksWithEpochs().forEach((subtopology, epochs) -> {
            ObjectNode numbers = active.putObject(subtopology);
            epochs.forEach((partition, epoch) -> numbers.put(String.valueOf(partition), epoch));
        });
        print(printed.putObject("standby"), tasks.standbyTasks());
        print(printed.putObject("warmup"), tasks.warmupTasks());
    }

    private static void print(ObjectNode printed, Map<String, Set<Integer>> tasks) {
        tasks.forEach((subtopology, partitions) -> {
            ArrayNode numbers = printed.putArray(subtopology);
            partitions.stream().sorted().forEach(numbers::add);
        });
    }
}
