package warmlog.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.tools.DumpLogSegments;

/**
 * Runs Kafka's DumpLogSegments over many files in one JVM.
 *
 * <p>Each line of standard input is one command line of the tool, its arguments parted by tabs. For each one line of JSON is
 * printed: {"arguments", "output", "complaints", "exception"}. The tool has no exit status: what it finds wrong it says on
 * standard error (mismatching index entries, offsets out of order) or throws.
 */
public final class Dump {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Dump() {}

    public static void main(String[] none) throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode result = dumped(line);
            System.setOut(out);
            System.setErr(err);
            out.println(JSON.writeValueAsString(result));
            out.flush();
        }
    }

    private static ObjectNode dumped(String line) {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream complaints = new ByteArrayOutputStream();
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complaints, true, StandardCharsets.UTF_8));
        ObjectNode result = JSON.createObjectNode();
        result.put("arguments", line);
        String exception = null;
        try {
            DumpLogSegments.main(line.split("\t"));
        } catch (Throwable thrown) {
            exception = thrown.toString();
        }
        System.out.flush();
        System.err.flush();
        result.put("output", output.toString(StandardCharsets.UTF_8));
        result.put("complaints", complaints.toString(StandardCharsets.UTF_8));
        result.put("exception", exception);
        return result;
    }
}
