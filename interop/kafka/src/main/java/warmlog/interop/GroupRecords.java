package warmlog.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * Writes keys and values of __consumer_offsets and __share_group_state with the classes of Kafka's coordinators.
 *
 * <p>Each line of standard input is a class (as group.OffsetCommitKey or share.ShareUpdateKey), a version of its fields,
 * the number that is put before them (a key's type, a value's version) and the fields as Kafka's JSON converters take them,
 * parted by tabs. For each one line is printed: all of it in hexadecimal digits.
 */
public final class GroupRecords {
    private static final ObjectMapper JSON = new ObjectMapper();

    private GroupRecords() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 4);
            short version = Short.parseShort(parts[1]);
            System.out.println(written(parts[0], version, Short.parseShort(parts[2]), JSON.readTree(parts[3])));
        }
    }

    private static String written(String name, short version, short number, JsonNode fields) throws Exception {
        String generated = name.replace(".", ".generated.");
        Class<?> converter = Class.forName("org.apache.kafka.coordinator." + generated + "JsonConverter");
        Method read = converter.getMethod("read", JsonNode.class, short.class);
        Message message = (Message) read.invoke(null, fields, version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(Short.BYTES + message.size(cache, version));
        buffer.putShort(number);
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HexFormat.of().formatHex(buffer.array());
    }
}
