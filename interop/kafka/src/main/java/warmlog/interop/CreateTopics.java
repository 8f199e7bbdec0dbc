package warmlog.interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/** Creates topics. Usage: CreateTopics BOOTSTRAP NAME:PARTITIONS[:SETTING=VALUE[,SETTING=VALUE]...]... */
public final class CreateTopics {
    private CreateTopics() {}

    public static void main(String[] arguments) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (int i = 1; i < arguments.length; i++) {
            topics.add(parsed(arguments[i].split(":")));
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            admin.createTopics(topics).all().get();
        }
    }

    private static NewTopic parsed(String[] fields) {
        Map<String, String> settings = new HashMap<>();
        if (fields.length > 2) {
            for (String setting : fields[2].split(",")) {
                String[] pair = setting.split("=", 2);
                settings.put(pair[0], pair[1]);
            }
        }
        return new NewTopic(fields[0], Integer.parseInt(fields[1]), (short) 1).configs(settings);
    }
}
