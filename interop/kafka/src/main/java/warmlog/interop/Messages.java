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
 * Writes messages of Kafka's protocol with Kafka's own classes.
 *
 * <p>Each line of standard input is a message's name (as MetadataRequest or ConsumerProtocolAssignment), a version and
 * its fields as Kafka's JSON converters take them, parted by tabs. For each one line is printed: the body in hexadecimal digits.
 */
public final class Messages {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Messages() {}

    public static void main(String[] none) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", 3);
            System.out.println(written(parts[0], Short.parseShort(parts[1]), JSON.readTree(parts[2])));
        }
    }

    private static String written(String name, short version, JsonNode fields) throws Exception {
        boolean isRpc = name.endsWith("Request") || name.endsWith("Response");
        Class<?> converter =
                Class.forName("org.apache.kafka.common.message." + name + (isRpc ? "Data" : "") + "JsonConverter");
        Method read = converter.getMethod("read", JsonNode.class, short.class);
        Message message = (Message) read.invoke(null, fields, version);
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
        message.write(new ByteBufferAccessor(buffer), cache, version);
        return HexFormat.of().formatHex(buffer.array());
    }
}
